"""The notation of cases: templates, arguments, repeats, lengths, and what can't be read."""

from __future__ import annotations

import attrs
import pytest

from rsocket_trio.conformance.catalogue import each_of, read_chapter
from rsocket_trio.conformance.notation import (
    ANYTHING,
    Argument,
    ExpectedAnswer,
    FramePattern,
    Notation,
    NotationError,
    Template,
    arguments_in,
    shown,
    valued,
)

NOTATION = read_chapter("rsocket/1.0").notation


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("", []),
        ('7 0x201 "d"', [7, 0x201, b"d"]),
        ('1 "" h', [1, b"", b""]),
        ('"a b"*3', [b"a ba ba b"]),
        ('"x"*0', [b""]),
        ('h00ff*2 "y"', [b"\x00\xff\x00\xff", b"y"]),
        ('h*3 1 "m"*2 "d"*3', [b"", 1, b"mm", b"ddd"]),
        ('1 * "x"', [1, ANYTHING, b"x"]),
        ('"*3"', [b"*3"]),
    ],
)
def test_arguments_are_numbers_texts_hex_and_repeats(text: str, arguments: list[Argument]) -> None:
    assert arguments_in(text) == arguments


@pytest.mark.parametrize("text", ['"open', "seven", "h0", '"x"*y', "h00*"])
def test_arguments_that_cannot_be_read_are_named(text: str) -> None:
    with pytest.raises(NotationError):
        NOTATION.frame(f"ask 1 {text}")


def test_a_repeat_fills_a_frame() -> None:
    assert NOTATION.frame('ask_described 1 "m"*300 "d"*2').value == (
        bytes.fromhex("00000001 1100 00012c") + b"m" * 300 + b"dd"
    )


def test_a_length_may_count_more_than_what_stands_behind_it() -> None:
    old, oldest = (read_chapter(f"reactivesocket/{version}").notation for version in ("0.1", "0.0"))
    assert old.frame('ask_described 2 "abc" "d"').value == bytes.fromhex("0004 4000 00000002 00000007 616263 64")
    assert oldest.frame('push_on 2 ""').value == bytes.fromhex("00 40 0031 0000000000000002 00 000004")
    for notation in (old, oldest):
        for expected, is_it in (('"meta" "data"', True), ('"met" "adata"', False), ('"meta" "dat"', False)):
            taken = notation.answer(f"2 {expected}").take(notation.frame('last_described 2 "meta" "data"').value)
            assert taken is is_it


def test_long_frames_are_shown_by_their_beginning() -> None:
    assert shown(b"") == "an empty frame"
    assert shown(b"\x01\x02") == "01 02"
    assert shown(bytes(1000)).endswith("00 00 ... 1000 bytes")
    assert str(NOTATION.frame('ask 1 "x"*1000')).endswith("78 78 ... 1006 bytes")
    assert str(NOTATION.frame("error 1 0x204")) == "00 00 00 01 2c 00 00 00 02 04 .."


def test_a_pattern_fits_what_it_leaves_open() -> None:
    assert NOTATION.frame("error 1 0x204").fits(bytes.fromhex("00000001 2c00 00000204") + b"why")
    assert not NOTATION.frame("error 1 0x204").fits(bytes.fromhex("00000001 2c00 00000203"))
    assert NOTATION.frame('keepalive_answer * "d"').fits(bytes.fromhex("00000000 0c00 0102030405060708") + b"d")
    assert NOTATION.frame('ask 1 "d"').fits(bytes.fromhex("00000001 1000 64"))
    assert not NOTATION.frame('ask 1 "d"').fits(bytes.fromhex("00000001 1000 6464"))
    assert not NOTATION.frame('ask 1 "d"').fits(bytes.fromhex("00000001 1000"))


@pytest.mark.parametrize(
    ("frame", "fits", "end"),
    [("01", False, 0), ("01 03", True, 2), ("01 02 02 03", True, 4), ("01 02 03 03", True, 3), ("02 03", False, 0)],
)
def test_bytes_stand_anywhere_behind_others(frame: str, fits: bool, end: int) -> None:
    pattern = NOTATION.frame("hex 01 .. 03 ..")

    assert pattern.fits(bytes.fromhex(frame)) is fits
    assert str(pattern) == "01 .. 03 .."
    if fits:
        assert pattern.end_in(bytes.fromhex(frame)) == end
    assert not NOTATION.frame("hex 01 .. 03").fits(bytes.fromhex("01 03 04"))


def test_the_token_of_a_client_is_found_in_its_frames() -> None:
    rest = " 00 00"
    setup = "00000000 0480 0001 0000 00004e20 00015f90 0003 616263" + rest
    assert NOTATION.token_in(bytes.fromhex(setup)) == b"abc"
    assert NOTATION.token_in(NOTATION.frame('client_resume "abc" 7 0').value) == b"abc"
    assert NOTATION.token_in(bytes.fromhex(setup.replace("0480", "0400"))) is None
    assert read_chapter("reactivesocket/0.1").notation.token_in(bytes.fromhex(setup)) is None


def test_values_of_a_session_stand_in_a_line() -> None:
    values: dict[str, int | bytes] = {"token": b"t", "sent": 5, "received": 0}
    line = "resume {token}*2 {received-1} {sent+2} {id}"
    assert valued(line, values) == "resume h74*2 0 7 {id}"


def test_only_a_frame_without_open_bytes_can_be_sent() -> None:
    assert NOTATION.frame('ask 1 "d"').is_exact
    assert not NOTATION.frame("hex 00 ??").is_exact
    assert not NOTATION.frame("hex 00 ..").is_exact
    assert FramePattern(b"", b"").is_exact


@pytest.mark.parametrize(
    "frame", ["nothing 1", "ask 1", 'ask "x" "d"', "ask 1 2", 'ask 4294967296 ""', "hex 0", "hex {id:4}"]
)
def test_a_frame_that_is_wrongly_written_is_an_error(frame: str) -> None:
    with pytest.raises(NotationError):
        NOTATION.frame(frame)


def test_a_template_names_what_is_no_token() -> None:
    with pytest.raises(NotationError, match="template odd: 'xyz'"):
        Template.parse("odd", "00 xyz")


@pytest.mark.parametrize(("counts_itself", "data"), [(False, "0003 616263"), (True, "0005 616263")])
def test_a_length_may_count_itself(counts_itself: bool, data: str) -> None:
    notation = Notation("test", 2, counts_itself, 1, {})
    framed = bytes.fromhex(data)
    assert notation.with_length(b"abc") == framed
    assert notation.cut(framed * 2 + b"re") == ([b"abc", b"abc"], b"re")
    assert notation.cut(framed[:-1]) == ([], framed[:-1])
    assert notation.cut(framed[:1]) == ([], framed[:1])


def test_a_step_for_each_id_has_ids_a_frame_and_what_comes_back() -> None:
    assert each_of('1 5 ask # "#"') == (range(1, 6, 2), 'ask # "#"', "", "")
    assert each_of('3 3 ask # "#" -> last # "#"') == (range(3, 4, 2), 'ask # "#"', "->", 'last # "#"')
    assert each_of('1 9 ask # "a" <= # "b"') == (range(1, 10, 2), 'ask # "a"', "<=", '# "b"')


@pytest.mark.parametrize("rest", ["5 1 cancel #", "2 1", "", "one two cancel #"])
def test_a_step_for_each_id_needs_ids(rest: str) -> None:
    with pytest.raises(ValueError, match=r"are no ids|invalid literal"):
        each_of(rest)


def answer(text: str) -> ExpectedAnswer:
    return NOTATION.answer(text)


ACCEPTED = {
    "in one frame": ('1 "ab"', ['last 1 "ab"']),
    "with metadata": ('1 "m" "d"', ['last_described 1 "m" "d"']),
    "with metadata, in two frames": ('1 "m" "d"', ['item_described 1 "m" "d"', "complete 1"]),
    "with empty metadata": ('1 "" ""', ['last_described 1 "" ""']),
}
REFUSED = {
    "other data": ('1 "ab"', ['last 1 "ba"']),
    "too much": ('1 "ab"', ['last 1 "abc"']),
    "the end alone": ('1 "ab"', ["complete 1"]),
    "two items": ('1 "ab"', ['item 1 "ab"', 'last 1 "ab"']),
    "metadata that is not wanted": ('1 "d"', ['last_described 1 "" "d"']),
    "metadata that lacks": ('1 "" "d"', ['last 1 "d"']),
    "a part": ('1 "abc"', ['more 1 "a"']),
}


@pytest.mark.parametrize(("expected", "frames"), ACCEPTED.values(), ids=ACCEPTED)
def test_an_answer_is_taken(expected: str, frames: list[str]) -> None:
    wanted = answer(expected)
    for frame in frames:
        assert not wanted.is_over
        assert wanted.take(NOTATION.frame(frame).value)
    assert wanted.is_over


@pytest.mark.parametrize(("expected", "frames"), REFUSED.values(), ids=REFUSED)
def test_an_answer_is_not_taken(expected: str, frames: list[str]) -> None:
    wanted = answer(expected)
    *right, wrong = frames
    for frame in right:
        assert wanted.take(NOTATION.frame(frame).value)
    assert not wanted.take(NOTATION.frame(wrong).value)
    assert not wanted.is_over


@pytest.mark.parametrize("text", ["", "1", '"x" "y"', "1 2", '1 "m" "d" "e"'])
def test_an_answer_has_an_id_metadata_if_any_and_data(text: str) -> None:
    with pytest.raises(NotationError):
        answer(text)


def test_a_dialect_without_such_a_frame_has_no_such_answer() -> None:
    bare = attrs.evolve(NOTATION, templates={"last": NOTATION.templates["last"]})
    with pytest.raises(NotationError, match="no frame 'last_described'"):
        bare.answer('2 "m" "d"')
