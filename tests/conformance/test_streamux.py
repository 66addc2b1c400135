"""Streamux as the tester speaks it: drawings, offers, and steps against peers that do what they say or do not."""

from __future__ import annotations

import pytest
import trio

from rsocket_trio.conformance.catalogue import Case, Level, Step, Word, read_chapter
from rsocket_trio.conformance.notation import NotationError, Template, Unfit
from rsocket_trio.conformance.play import CaseOutcome, CaseResult, play
from rsocket_trio.conformance.streamux_notation import Streamux, Widths
from rsocket_trio.conformance.wire import WireEnd
from rsocket_trio.transports.memory import memory_pair

NOTATION = read_chapter("streamux/1").notation
EXACT = "01 05 29 65 29"
"""An offer of 5 and 9 bits and nothing else."""


def connected(widths: Widths) -> Streamux:
    made = NOTATION.connected()
    assert isinstance(made, Streamux)
    made.agreed_widths, made.is_agreed = widths, True
    return made


@pytest.mark.parametrize(
    ("text", "widths", "bytes_"),
    [
        ('request 5 "abc"', Widths(10, 14), "0d 00 05 00 61 62 63"),
        ('response 19 "abc"', Widths(5, 9), "0f 98 61 62 63"),
        ('request_more 0 "abc"', Widths(0, 6), "0c 61 62 63"),
        ("cancel 165", Widths(8, 8), "00 94 02"),
        ("ping_ack 3", Widths(8, 14), "03 00 03"),
        ("response * *", Widths(5, 9), "?? ?? .."),
        ("header 1 2 1 0", Widths(5, 9), "0a 08"),
        ("offer 5 5 5 9 9 9", Widths(0, 1), EXACT),
        ("quick 0 29 8 1 30 14", Widths(0, 1), "01 20 ea 07 ce"),
    ],
)
def test_drawings_are_bytes_in_the_widths_of_a_connection(text: str, widths: Widths, bytes_: str) -> None:
    assert str(connected(widths).frame(text)) == bytes_


def test_any_payload_leaves_the_other_bits_fixed() -> None:
    pattern = connected(Widths(5, 9)).frame("response 19 *")

    assert pattern.fits(bytes.fromhex("0f 98 61 62 63"))
    assert pattern.fits(bytes.fromhex("03 98"))
    assert not pattern.fits(bytes.fromhex("0d 98 61 62 63"))
    assert not pattern.fits(bytes.fromhex("0f 28 61 62 63"))


@pytest.mark.parametrize("text", ["ping 32", 'request 1 "x"*512', "header 1 512 0 0"])
def test_what_the_widths_cannot_express_is_no_failure(text: str) -> None:
    with pytest.raises(Unfit):
        connected(Widths(5, 9)).frame(text)


@pytest.mark.parametrize(("text", "told"), [("0 1 x", "'x' is no hex, bit"), ("{id:i} 2", "'2' is no hex, bit")])
def test_a_drawing_that_cannot_be_read_is_named(text: str, told: str) -> None:
    with pytest.raises(NotationError, match=f"template bad: {told}"):
        Template.parse("bad", text)


@pytest.mark.parametrize("text", ["request 1", "ping"])
def test_wrong_arguments_are_told(text: str) -> None:
    with pytest.raises(NotationError):
        NOTATION.frame(text)


# Steps


async def played(
    steps: str, said: str, *, ends: bool = False, level: Level = Level.MUST, role: str = "client"
) -> CaseResult:
    """Play steps against a peer that says these bytes, and then reads or ends."""
    words = [line.strip().partition(" ") for line in steps.splitlines() if line.strip()]
    read = tuple(Step(Word(sign), rest, f"{sign} {rest}") for sign, _, rest in words)
    made = Case("made-up", "streamux/1", role, "a case", ("SMX-INI-01",), level, (), read)
    ours, theirs = memory_pair()

    async def peer() -> None:
        await theirs.send([bytes([byte]) for byte in bytes.fromhex(said)])
        if ends:
            theirs.cut()
            return
        while await theirs.receive():
            pass

    async with trio.open_nursery() as nursery:
        nursery.start_soon(peer)
        result = await play(made, WireEnd(ours, NOTATION), 5)
        nursery.cancel_scope.cancel()
    ours.cut()
    return result


AGREED = "> offer 5 5 5 9 9 9\nagreed\n"
RIGHT = {
    "requests in any order": (AGREED + '<? $a "ab" ; $b "c"', EXACT + "0488 61 0570 63 0588 62", False),
    "a request that ends empty": (AGREED + '<? $a "ab"', EXACT + "0888 6162 0188", False),
    "a refusal without a word": ("> hex 0000000000\nrefused", "", True),
    "a quick request before the tester spoke": ('< quick * * * * * *\n<? $a "x"', "0125296529 0510 78", False),
    "an answer in chunks": (AGREED + '> request 1 "abc"\n<= 1 "abc"', EXACT + "0a08 6162 0608 63 0308", False),
}
WRONG = {
    "half of one": (AGREED, "0105", True, "the peer closed the connection"),
    "an offer that no peer may make": (AGREED, "01 45 29 65 29", False, "reserved of 1"),
    "an unused bit": (
        "> offer 4 4 4 3 3 3\nagreed\nsilent 1",
        "01 04 21 0c 63 0002",
        False,
        "that nothing uses are set",
    ),
    "an id in flight": (AGREED + '<? $a "x" ; $b "x"', EXACT + "0510 78 0510 78", False, "although it is in flight"),
    "a chunk behind a refusal": ("> hex 0000000000\nrefused", EXACT + "0510 78", False, "expected nothing after"),
    "an answer of other data": (AGREED + '> request 1 "abc"\n<= 1 "abc"', EXACT + "0a08 6163 0608 62", False, "came"),
    "an answer that ends too soon": (AGREED + '> request 1 "abc"\n<= 1 "abc"', EXACT + "0b08 6162", False, "came"),
    "an answer cut off by an empty chunk": (
        AGREED + '> request 1 "abc"\n<= 1 "abc"',
        EXACT + "0a08 6162 0208 0608 63",
        False,
        "came, expected",
    ),
}


@pytest.mark.parametrize(("steps", "said", "ends"), RIGHT.values(), ids=list(RIGHT))
async def test_a_step_passes(autojump_clock: object, steps: str, said: str, ends: bool) -> None:
    result = await played(steps, said, ends=ends)

    assert (result.outcome, result.why) == (CaseOutcome.PASS, "")


@pytest.mark.parametrize(("steps", "said", "ends", "why"), WRONG.values(), ids=list(WRONG))
async def test_a_step_fails(autojump_clock: object, steps: str, said: str, ends: bool, why: str) -> None:
    result = await played(steps, said, ends=ends)

    assert result.outcome is CaseOutcome.FAIL
    assert why in result.why


@pytest.mark.parametrize(
    ("steps", "said", "outcome"),
    [
        ("> offer 6 6 6 9 9 9\nagreed", EXACT, CaseOutcome.NOT_APPLICABLE),
        ("> offer 5 5 5 9 9 9\nrefused", EXACT, CaseOutcome.NOT_APPLICABLE),
        (AGREED + "> ping 32", EXACT, CaseOutcome.NOT_APPLICABLE),
        ("> hex 0000000000\nrefused", EXACT, CaseOutcome.DEVIATION),
    ],
    ids=["no agreement", "an agreement", "widths that are too small", "a connection that stays"],
)
async def test_a_step_does_not_apply_or_is_left_open(
    autojump_clock: object, steps: str, said: str, outcome: CaseOutcome
) -> None:
    assert (await played(steps, said)).outcome is outcome


async def test_a_request_of_the_server_is_answered_empty_once_it_is_whole(autojump_clock: object) -> None:
    first, rest, silence = "0410 78", "0510 78", AGREED + "silent 1"
    result = await played(silence, EXACT + first + rest, role="server")

    assert (result.outcome, result.why) == (CaseOutcome.PASS, "")
    assert [one.data.hex() for one in result.record if one.sent] == ["0105296529", "0310"]
    cancelled = await played(silence, EXACT + first + "0010", role="server")
    assert [one.data.hex() for one in cancelled.record if one.sent][1:] == ["0210"]
    assert "expected nothing for 1 s" in (await played(silence, EXACT + "0010", role="server")).why
    assert "expected nothing for 1 s" in (await played(silence, EXACT + rest)).why
