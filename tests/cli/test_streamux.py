"""What the commands ``streamux negotiate`` and ``streamux init`` answer, and that ``frames`` has none for Streamux."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsocket_trio.cli.streamux import encode_lines, negotiated, shown
from tests.cli.commands import run
from tests.each_row import each_row

clause = pytest.mark.clause
A, B = "0106621a8e", "010679d5ef"
"""The two peers of the specification's first example: ID (6,12,8) and (6,15,7), Length (6,20,14) and (5,15,15)."""
A_JSON = {
    "version": 1,
    "qr": False,
    "qa": False,
    "min_id": 6,
    "max_id": 12,
    "rec_id": 8,
    "min_len": 6,
    "max_len": 20,
    "rec_len": 14,
    "reserved": 0,
}
REQUESTING, ALLOWING = "01287a2a4e", "011692a1ea"
"""Those of its quick init: ID (8,15,8) and (6,18,10), Length (10,18,14) and (8,15,10)."""
NOTHING = {"ok": False, "id_bits": None, "length_bits": None, "header_size": None, "quick": None}


def encoded(content: object) -> tuple[str, bool]:
    [answer] = encode_lines([json.dumps(content)])
    return answer


# negotiate


@pytest.mark.parametrize(
    ("a", "b", "outcome"),
    [
        pytest.param(
            A,
            B,
            {"ok": True, "id_bits": 7, "length_bits": 14, "header_size": 3, "quick": None},
            marks=clause("SMX-EX-01"),
        ),
        pytest.param(
            REQUESTING,
            ALLOWING,
            {"ok": True, "id_bits": 8, "length_bits": 14, "header_size": 3, "quick": "a"},
            marks=clause("SMX-EX-05"),
        ),
        pytest.param(
            ALLOWING,
            REQUESTING,
            {"ok": True, "id_bits": 8, "length_bits": 14, "header_size": 3, "quick": "b"},
            marks=clause("SMX-EX-05"),
        ),
    ],
)
async def test_two_messages_come_to_what_the_specification_says(a: str, b: str, outcome: dict[str, object]) -> None:
    result = await run("streamux", "negotiate", a, b)

    assert (result.code, result.stderr, result.stdout.count("\n")) == (0, "", 1)
    assert json.loads(result.stdout) == outcome


@each_row(
    ("a", "b", "reason"),
    [
        (
            "010642158c",  # ID (6,8,8), Length (5,12,12)
            "010a7a95ef",  # ID (10,15,10), Length (5,15,15)
            "min_id of 10 against max_id of 8: no number of bits is right for both sides",
        ),
        ("0006621a8e", B, "a: version of 0: must be 1 to 255"),
        (A, "01c679d5ef", "b: reserved of 3: must be 0 to 0"),
        (REQUESTING, B, "qr of one side without qa of the other: the quick init is not allowed"),
        (A, B + "00", "b: initialize message of 6 bytes: it has 5"),
    ],
)
def test_a_negotiation_that_fails_says_which_field_and_value(a: str, b: str, reason: str) -> None:
    answer, good = negotiated(bytes.fromhex(a), bytes.fromhex(b))

    assert not good
    assert json.loads(answer) == {**NOTHING, "reason": reason}


# init, from hex


@clause("SMX-INI-03", "SMX-INI-04")
async def test_a_message_is_shown_field_by_field() -> None:
    result = await run("streamux", "init", A)

    assert (result.code, result.stderr, result.stdout) == (0, "", json.dumps(A_JSON) + "\n")


# init, from JSON


@each_row(
    ("line", "error"),
    [
        ('{"max": 1}', "max: an initialize message has no such field"),
        ('{"min_id": 16}', "min_id of 16: its field holds 0 to 15"),
        ('{"version": 256}', "version of 256: its field holds 0 to 255"),
        ('{"min_id": "6"}', "Expected `int`, got `str` - at `$.min_id`"),
        ('{"qr": 2}', "Expected `bool`, got `int` - at `$.qr`"),
        ("{", "not JSON: "),
        ("[" * 100_000, "not JSON"),
        ('{"min_id": 1' + "0" * 5000 + "}", ""),
    ],
    ids=lambda text: text[:20],
)
def test_json_that_describes_no_message_says_which_key_is_wrong(line: str, error: str) -> None:
    [(answer, good)] = encode_lines([line])
    content = json.loads(answer)

    assert not good
    assert list(content) == ["error"]
    assert content["error"].startswith(error)
    assert "\n" not in content["error"]


@given(data=st.binary(min_size=5, max_size=5))
def test_any_message_that_was_shown_is_written_again_the_same(data: bytes) -> None:
    answer, _ = shown(data)

    assert list(encode_lines([answer])) == [(data.hex(), True)]


# Wrong usage


@each_row(
    ("arguments", "said"),
    [
        (["streamux"], "rsocket-trio streamux: a command is missing: negotiate or init"),
        (["streamux", "negotiate", A], "rsocket-trio streamux negotiate: missing argument"),
        (["streamux", "negotiate", A, "010679d5eg"], "not hex: 'g' at digit 9"),
        (["frames", "decode", "--dialect", "streamux/1"], "'streamux/1': its chunks depend on a negotiation"),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, list) else "",
)
async def test_wrong_words_are_one_line(arguments: list[str], said: str) -> None:
    result = await run(*arguments, stdin=b"00")

    assert (result.code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert said in result.stderr
