"""What the commands ``streamux negotiate`` and ``streamux init`` answer, and that ``frames`` has none for Streamux."""

from __future__ import annotations

import json
import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsocket_trio.cli.streamux import encode_lines, negotiated, shown
from tests.cli.commands import run, started
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
        (A, "0206621a8e", "version 1 against 2: they must be equal"),
        (REQUESTING, B, "qr of one side without qa of the other: the quick init is not allowed"),
        (A[:-2], B, "a: initialize message of 4 bytes: it has 5"),
        (A, B + "00", "b: initialize message of 6 bytes: it has 5"),
        ("", B, "a: initialize message of 0 bytes: it has 5"),
    ],
)
def test_a_negotiation_that_fails_says_which_field_and_value(a: str, b: str, reason: str) -> None:
    answer, good = negotiated(bytes.fromhex(a), bytes.fromhex(b))

    assert not good
    assert json.loads(answer) == {**NOTHING, "reason": reason}


async def test_a_negotiation_that_fails_exits_1() -> None:
    result = await run("streamux", "negotiate", A, "01 c6 79 d5 ef")

    assert (result.code, result.stderr) == (1, "")
    assert json.loads(result.stdout) == {**NOTHING, "reason": "b: reserved of 3: must be 0 to 0"}


# init, from hex


@clause("SMX-INI-03", "SMX-INI-04")
async def test_a_message_is_shown_field_by_field() -> None:
    result = await run("streamux", "init", A)

    assert (result.code, result.stderr, result.stdout) == (0, "", json.dumps(A_JSON) + "\n")


def test_a_wrong_message_is_shown_as_it_is() -> None:
    answer, good = shown(bytes.fromhex("00f6 fffc1f"))

    assert good
    assert json.loads(answer) == {
        "version": 0,
        "qr": True,
        "qa": True,
        "min_id": 6,
        "max_id": 31,
        "rec_id": 31,
        "min_len": 15,
        "max_len": 0,
        "rec_len": 31,
        "reserved": 3,
    }


@pytest.mark.parametrize("size", [0, 1, 4, 6])
async def test_a_message_of_a_wrong_size_is_an_error(size: int) -> None:
    result = await run("streamux", "init", "01" * size)

    assert (result.code, result.stderr) == (1, "")
    assert json.loads(result.stdout) == {"error": f"initialize message of {size} bytes: it has 5"}


# init, from JSON


def test_json_becomes_hex() -> None:
    assert encoded(A_JSON) == (A, True)
    assert encoded({**A_JSON, "qr": 0, "qa": 0}) == (A, True)


def test_absent_keys_are_false_or_0_and_the_version_is_1() -> None:
    assert encoded({}) == ("0100000000", True)
    assert encoded({"qr": 1}) == encoded({"qr": True}) == ("0120000000", True)
    assert encoded({"qa": 1}) == encoded({"qa": True}) == ("0110000000", True)


def test_numbers_that_no_peer_may_offer_are_written_where_they_fit() -> None:
    wrong = {"version": 0, "reserved": 3, "qr": True, "qa": True, "max_id": 31, "rec_id": 30, "max_len": 31}

    # 00000000, 11 1 1 0000, 11111 11110 0000 11111 00000
    assert encoded(wrong) == ("00f0ff83e0", True)


@each_row(
    ("line", "error"),
    [
        ('{"max": 1}', "max: an initialize message has no such field"),
        ('{"max": 0}', "max: an initialize message has no such field"),
        ('{"min_id": 16}', "min_id of 16: its field holds 0 to 15"),
        ('{"max_id": 32}', "max_id of 32: its field holds 0 to 31"),
        ('{"rec_id": -1}', "rec_id of -1: its field holds 0 to 31"),
        ('{"min_len": 16}', "min_len of 16: its field holds 0 to 15"),
        ('{"max_len": 32}', "max_len of 32: its field holds 0 to 31"),
        ('{"rec_len": 32}', "rec_len of 32: its field holds 0 to 31"),
        ('{"reserved": 4}', "reserved of 4: its field holds 0 to 3"),
        ('{"version": 256}', "version of 256: its field holds 0 to 255"),
        ('{"version": 1.0}', "version: a whole number expected, not 1.0"),
        ('{"min_id": "6"}', "min_id: a whole number expected, not '6'"),
        ('{"min_id": true}', "min_id: a whole number expected, not True"),
        ('{"min_id": null}', "min_id: a whole number expected, not None"),
        ('{"min_id": NaN}', "min_id: a whole number expected, not nan"),
        ('{"qr": 2}', "qr: true, false, 0 or 1 expected, not 2"),
        ('{"qr": 1.0}', "qr: true, false, 0 or 1 expected, not 1.0"),
        ('{"qa": "true"}', "qa: true, false, 0 or 1 expected, not 'true'"),
        ('{"qa": null}', "qa: true, false, 0 or 1 expected, not None"),
        ("[1]", "a JSON object expected, not [1]"),
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


def test_a_wrong_line_says_so_and_the_rest_goes_on() -> None:
    answers = list(encode_lines(["{}\n", "\n", "xyz\n", "  ", "{}"]))

    assert [good for _, good in answers] == [True, False, True]


@given(data=st.binary(min_size=5, max_size=5))
def test_any_message_that_was_shown_is_written_again_the_same(data: bytes) -> None:
    answer, _ = shown(data)

    assert list(encode_lines([answer])) == [(data.hex(), True)]


async def test_lines_of_json_are_answered_on_their_lines_and_a_wrong_one_exits_1() -> None:
    lines = [json.dumps(A_JSON), "", '{"rec_id": 32}', "{}"]
    result = await run("streamux", "init", stdin="\n".join(lines).encode())

    assert (result.code, result.stderr) == (1, "")
    assert result.stdout.splitlines() == [A, '{"error": "rec_id of 32: its field holds 0 to 31"}', "0100000000"]


async def test_right_lines_and_no_lines_exit_0() -> None:
    some = await run("streamux", "init", stdin=b"{}\n")
    none = await run("streamux", "init")

    assert (some.code, some.stdout) == (0, "0100000000\n")
    assert (none.code, none.stdout) == (0, "")


async def test_a_line_is_answered_before_the_next_one_comes_and_ctrl_c_ends_it_quietly() -> None:
    async with started("streamux", "init") as command:
        for version in (1, 2):
            await command.write(b'{"version": %d}\n' % version)
            assert await command.line() == f"0{version}00000000"
        command.process.send_signal(signal.SIGINT)

        assert await command.end() == (130, "")


async def test_a_reader_that_has_enough_ends_it_quietly() -> None:
    async with started("streamux", "init") as command:
        await command.write(b"{}\n")
        await command.line()
        await command.close("stdout")
        await command.write(b"{}\n")

        assert await command.end() == (0, "")


# Wrong usage


@each_row(
    ("arguments", "said"),
    [
        (["streamux"], "rsocket-trio streamux: a command is missing: negotiate or init"),
        (["streamux", "agree"], "rsocket-trio streamux: no such command 'agree' ("),
        (["streamux", "negotiate", A], "rsocket-trio streamux negotiate: missing argument"),
        (["streamux", "negotiate", A, B, A], "rsocket-trio streamux negotiate: got unexpected extra argument"),
        (["streamux", "negotiate", A, "010679d5eg"], "not hex: 'g' at digit 9"),
        (["streamux", "negotiate", "0106621a8", B], "not hex: 9 digits, which is odd"),
        (["streamux", "init", "xyz"], "not hex: 'x' at digit 0"),
        (["streamux", "init", A, B], "rsocket-trio streamux init: got unexpected extra argument"),
        (["frames", "decode", "--dialect", "streamux/1"], "'streamux/1': its chunks depend on a negotiation"),
        (["frames", "decode", "--dialect", "streamux"], "'streamux': its chunks depend on a negotiation"),
        (["frames", "encode", "--dialect", "streamux/1"], "'streamux/1': its chunks depend on a negotiation"),
        (["frames", "encode", "--tcp", "--dialect", "streamux"], "'streamux': its chunks depend on a negotiation"),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, list) else "",
)
async def test_wrong_words_are_one_line(arguments: list[str], said: str) -> None:
    result = await run(*arguments, stdin=b"00")

    assert (result.code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert said in result.stderr


@pytest.mark.parametrize("command", ["streamux", "streamux negotiate", "streamux init"])
async def test_every_command_has_help(command: str) -> None:
    result = await run(*command.split(), "--help")

    assert (result.code, result.stderr) == (0, "")
    assert result.stdout.startswith(f"Usage: rsocket-trio {command}")


@pytest.mark.parametrize("command", ["decode", "encode"])
async def test_the_help_of_frames_names_no_dialect_that_has_none(command: str) -> None:
    result = await run("frames", command, "--help")

    assert "1.0" in result.stdout
    assert "streamux" not in result.stdout
