"""Steps of cases, each played against a peer that does what it says, and against peers that do not."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import attrs
import msgspec
import pytest
import trio

from rsocket_trio.conformance.catalogue import (
    NEEDS,
    OPTIONS,
    TERMS,
    TESTED_DIALECTS,
    Case,
    Level,
    Step,
    Taken,
    Word,
    clauses,
    level_of,
    read_chapter,
    rows_taken,
)
from rsocket_trio.conformance.play import CaseOutcome, CaseResult, play
from rsocket_trio.conformance.run import Target, run
from rsocket_trio.conformance.wire import WireEnd
from rsocket_trio.transports.base import Transport
from rsocket_trio.transports.memory import MemoryTransport, memory_pair

CHAPTER = read_chapter("rsocket/1.0")
NOTATION = CHAPTER.notation
PATIENCE = 5.0


def case(steps: str, level: Level = Level.MUST, dialect: str = NOTATION.dialect, role: str = "server") -> Case:
    read = []
    for line in filter(None, (line.strip() for line in steps.splitlines())):
        sign, _, rest = line.partition(" ")
        read.append(Step(Word(sign), rest, line))
    return Case("made-up", dialect, role, "a case", ("RS10-SEQ-01",), level, (), tuple(read))


async def played(
    steps: str, said: Sequence[str], *, ends: bool = False, level: Level = Level.MUST, role: str = "server"
) -> CaseResult:
    """Play steps against a peer that says these frames at once, and then reads or ends."""
    return (await played_and_heard(steps, said, ends=ends, level=level, role=role))[0]


async def played_and_heard(
    steps: str,
    said: Sequence[str],
    *,
    ends: bool = False,
    level: Level = Level.MUST,
    dialect: str = NOTATION.dialect,
    role: str = "server",
) -> tuple[CaseResult, list[bytes]]:
    """The same, with what the peer heard."""
    ours, theirs = memory_pair()
    notation = read_chapter(dialect).notation
    heard: list[bytes] = []

    async def peer() -> None:
        if said:
            await theirs.send([notation.frame(frame).value for frame in said])
        if ends:
            theirs.cut()
            return
        while frames := await theirs.receive():
            heard.extend(frames)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(peer)
        result = await play(case(steps, level, dialect, role), WireEnd(ours, notation), PATIENCE)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    ours.cut()
    return result, heard


SETUP = "hex 00000000 0400 0001 0000 000003e8 000007d0 0000"
"""A client's SETUP with an interval of 1 s and a lifetime of 2 s."""
PASSED = {
    "KEEPALIVEs in their interval": ("< client_setup\nbeats 2", [SETUP, 'keepalive 0 ""', 'keepalive 0 "x"']),
    "an answer behind what may come at any time": ('<= 1 "a"', ["request_n 1 5", 'keepalive 0 ""', 'last 1 "a"']),
    "counted items in fragments": (
        "counted 1 10 11",
        ['item 1 "10"', 'item_more 1 "1"', "request_n 1 1", 'item 1 "1"'],
    ),
    "a frame for each in fragments": (
        'each 1 3 stream # 1 "" -> item # "00"',
        ['item_more 3 "0"', 'item_more 1 "0"', 'item 1 "0"', 'item 3 "0"'],
    ),
    "a grant in portions": ("granted 1 3", ["request_n 1 1", "request_n 1 1", "request_n 1 9"]),
    "a grant behind an item that is kept": (
        'granted 1 1\n< item 1 "a"\n< item 1 "b"',
        ['item 1 "a"', "request_n 1 1", 'item 1 "b"'],
    ),
    "a grant that came before": ('< item 1 "a"\ngranted 1 1', ["request_n 1 1", 'item 1 "a"']),
    "an open frame for each": (
        'each 1 3 keepalive 0 "#" -> keepalive_answer * "#"',
        ['keepalive_answer 7 "1"', 'keepalive_answer 8 "3"'],
    ),
    "an answer behind what needs no answer": (
        '> setup\n<= 1 "a"',
        ['forget 2 "f"', 'push "m"', 'ext_ignorable 0 7 "x"', 'ext_ignorable 1 7 "x"', 'last 1 "a"'],
    ),
    "an answer amid the frames of a request of the server": (
        '> setup\n<= 1 "a"',
        ['channel_more 2 5 "q"', 'last 1 "a"', 'item 2 "r"', "request_n 2 1", "cancel 2"],
    ),
}
FAILED = {
    "a KEEPALIVE too few": ("< client_setup\nbeats 2", [SETUP, 'keepalive 0 ""'], "1 of 2 KEEPALIVEs came"),
    "a word instead of a KEEPALIVE": ("< client_setup\nbeats 1", [SETUP, "cancel 1"], "expected a KEEPALIVE"),
    "life beyond the lifetime": ("< client_setup\noutlived", [SETUP], "went on for 5 s after the lifetime of 2 s"),
    "an answer to a KEEPALIVE that was not sent": ("silent 1", ['keepalive_answer 0 ""'], "expected nothing for 1 s"),
    "a KEEPALIVE answered twice": (
        '< keepalive_answer 0 "a"\nalive',
        ['keepalive_answer 0 "a"', 'keepalive_answer 0 "a"'],
        "expected nothing but the answer to a probe",
    ),
    "an answer on a third stream": ('<= 1 "a" ; 3 "b"', ['last 5 "a"'], "expected"),
    "one of many answers": ('each 1 19 ask # "#" <= # "#"', ['last 1 "2"'], "28 60 31, or one of 9 others"),
    "a fragment without the rest": ('< item 1 "ab"', ['item_more 1 "a"'], "came, and not the rest of it in 5 s"),
    "a fragment in silence": ("silent 1", ['item_more 1 "a"'], "28 a0 61 came, expected nothing for 1 s"),
    "a fragment before the answer to a probe": (
        "alive",
        ['item_more 1 "a"', 'keepalive_answer 0 "probe 32513"'],
        "28 a0 61 came, expected nothing but the answer to a probe",
    ),
    "metadata behind data": (
        '< item_described 1 "m" "ab"',
        ['item_more 1 "a"', 'item_described 1 "m" "b"'],
        "came: metadata stands in a fragment behind data",
    ),
    "a request before SETUP": ("silent 1", ['ask 2 "q"'], "expected nothing for 1 s"),
    "a request on a stream of the tester": ("> setup\nsilent 1", ['ask 1 "q"'], "expected nothing for 1 s"),
    "a frame that a silence excludes": ('> setup\nsilent 1 push "m"', ['push "m"'], "expected nothing for 1 s"),
    "too small a grant": ("granted 1 3", ["request_n 1 2"], "2 items were granted on stream 1 in 5 s, expected 3"),
    "an item that was kept and is not expected": ("granted 1 1\nsilent 1", ['item 1 "a"', "request_n 1 1"], "nothing"),
    "a frame twice": (
        'each 1 3 stream # 1 "" -> item # "0"',
        ['item 3 "0"', 'item 3 "0"'],
        "or the same on another stream",
    ),
}
AT_THE_END = ('<= 1 "a"', "granted 1 1", 'each 1 3 stream # 1 "" -> item # "0"', "silent 1")


@pytest.mark.parametrize(("steps", "said"), PASSED.values(), ids=PASSED)
async def test_a_step_passes(autojump_clock: object, steps: str, said: list[str]) -> None:
    result = await played(steps, said)
    assert (result.outcome, result.why) == (CaseOutcome.PASS, "")


@pytest.mark.parametrize(("steps", "said", "why"), FAILED.values(), ids=FAILED)
async def test_a_step_fails_and_says_why(autojump_clock: object, steps: str, said: list[str], why: str) -> None:
    result = await played(steps, said)
    assert result.outcome is CaseOutcome.FAIL
    assert why in result.why
    assert (await played(steps, said, level=Level.READING)).outcome is CaseOutcome.DEVIATION


@pytest.mark.parametrize("steps", AT_THE_END)
async def test_a_step_fails_at_the_end_of_the_connection(autojump_clock: object, steps: str) -> None:
    result = await played(steps, [], ends=True)
    assert (result.outcome, result.why) == (CaseOutcome.FAIL, "the peer closed the connection")


async def test_a_client_that_ends_too_early_has_not_waited_for_its_lifetime(autojump_clock: object) -> None:
    result = await played("< client_setup\noutlived", [SETUP], ends=True)
    assert result.why == "the end came before the lifetime of 2 s was over"


@pytest.mark.parametrize("step", ["beats 1", "outlived"])
async def test_times_that_are_unknown_or_long_make_a_case_meaningless(autojump_clock: object, step: str) -> None:
    unknown = await played(step, [])
    long = await played(f"< client_setup\n{step}", ["hex 00000000 0400 0001 0000 00004e20 00015f90 0000"])
    assert (unknown.outcome, long.outcome) == (CaseOutcome.NOT_APPLICABLE, CaseOutcome.NOT_APPLICABLE)
    assert "says no" in unknown.why
    assert "above" in long.why


async def test_a_case_that_needs_more_room_than_there_is_does_not_apply(autojump_clock: object) -> None:
    result = await played("room 1 3", ["request_n 1 2"])
    assert (result.outcome, result.why) == (
        CaseOutcome.NOT_APPLICABLE,
        "the peer granted 2 items on stream 1, the case needs 3",
    )


async def test_frames_are_sent_for_each_id_and_several_times(autojump_clock: object) -> None:
    result, heard = await played_and_heard('each 1 5 ask # "n #"\ntimes 3 request_n 1 1', [])
    assert result.outcome is CaseOutcome.PASS
    wanted = ['ask 1 "n 1"', 'ask 3 "n 3"', 'ask 5 "n 5"', *["request_n 1 1"] * 3]
    assert heard == [NOTATION.frame(frame).value for frame in wanted]


async def test_many_frames_go_in_portions(autojump_clock: object) -> None:
    result, heard = await played_and_heard("each 1 2999 cancel #", [])
    assert result.outcome is CaseOutcome.PASS
    assert heard == [NOTATION.frame(f"cancel {number}").value for number in range(1, 3000, 2)]


async def test_bytes_are_sent_one_at_a_time(autojump_clock: object) -> None:
    result, heard = await played_and_heard(">. cancel 1 ; cancel 3", [])
    assert result.outcome is CaseOutcome.PASS
    assert b"".join(heard) == bytes.fromhex("000006 00000001 2400 000006 00000003 2400")
    assert {len(one) for one in heard} == {1}


@pytest.mark.parametrize(("steps", "answers"), [("silent 1", 1), ("mute\nsilent 1", 0)])
async def test_a_keepalive_is_answered_unless_the_tester_is_mute(
    autojump_clock: object, steps: str, answers: int
) -> None:
    result, heard = await played_and_heard(steps, ['keepalive 9 "x"'])
    assert result.outcome is CaseOutcome.PASS
    assert heard == [NOTATION.frame('keepalive_answer 0 "x"').value] * answers


@pytest.mark.parametrize(
    ("dialect", "expected", "came", "outcome"),
    [
        pytest.param("reactivesocket/0.1", 2, 6, CaseOutcome.NOT_APPLICABLE, id="later, of the same parity"),
        pytest.param("reactivesocket/0.1", 2, 3, CaseOutcome.FAIL, id="of the other parity"),
        pytest.param("reactivesocket/0.2", 3, 1, CaseOutcome.FAIL, id="used before"),
        pytest.param("reactivesocket/0.2", 3, 5, CaseOutcome.NOT_APPLICABLE, id="one left out"),
        pytest.param("reactivesocket/0.0", 2, 1, CaseOutcome.NOT_APPLICABLE, id="any"),
        pytest.param("reactivesocket/0.0", 2, 0, CaseOutcome.FAIL, id="that of the connection"),
        pytest.param("rsocket/1.0", 1, 3, CaseOutcome.FAIL, id="not the one that the document says"),
    ],
)
async def test_a_client_may_number_its_streams_as_the_document_lets_it(
    autojump_clock: object, dialect: str, expected: int, came: int, outcome: CaseOutcome
) -> None:
    notation = read_chapter(dialect).notation
    ours, theirs = memory_pair()
    await theirs.send([notation.frame(f'ask {came} "q"').value])
    steps = (Step(Word.EXPECT, f'ask {expected} "q"', "line"),)
    made_up = Case("made-up", dialect, "client", "a case", ("RS10-SEQ-01",), Level.MUST, (), steps)

    assert (await play(made_up, WireEnd(ours, notation), PATIENCE)).outcome is outcome


@pytest.mark.parametrize(
    ("level", "outcome"),
    [(Level.MUST, CaseOutcome.FAIL), (Level.SHOULD, CaseOutcome.DEVIATION)],
    ids=lambda one: one.value,
)
async def test_a_case_without_end_is_of_its_level_and_tells_what_passed(
    autojump_clock: object, level: Level, outcome: CaseOutcome
) -> None:
    @asynccontextmanager
    async def dial() -> AsyncIterator[Transport]:
        ours, theirs = memory_pair()
        yield ours
        theirs.cut()

    [result] = await run([case('> ask 1 "x"\nsilent 100', level)], Target(dial, frozenset()))

    assert (result.outcome, result.why) == (outcome, "not over after 60 s")
    assert [passed.data for passed in result.record] == [NOTATION.frame('ask 1 "x"').value]


REJECTIONS = {
    "rsocket/1.0": ('ask 2 "q"', 'send_error 2 0x202 "the tester serves no requests"'),
    "rsocket/2.0-draft": ('stream 2 1 "q"', 'send_error 2 0x202 "the tester serves no requests"'),
    "reactivesocket/0.2": ('channel 2 1 "q"', 'send_error 2 0x202 "the tester serves no requests"'),
    "reactivesocket/0.1": ('sub 1 1 "q"', 'send_error 1 0x202 "the tester serves no requests"'),
    "reactivesocket/0.0": ('ask 7 "q"', 'send_error 7 "the tester serves no requests"'),
}


@pytest.mark.parametrize("dialect", REJECTIONS)
@pytest.mark.parametrize(("mute", "is_answered"), [("", True), ("mute\n", False)])
async def test_a_request_of_the_server_is_rejected_unless_the_tester_is_mute(
    autojump_clock: object, dialect: str, mute: str, is_answered: bool
) -> None:
    asked, answer = REJECTIONS[dialect]
    result, heard = await played_and_heard(f"{mute}> setup\nsilent 1", [asked, asked], dialect=dialect)

    assert (result.outcome, result.why) == (CaseOutcome.PASS, "")
    notation = read_chapter(dialect).notation
    assert heard[1:] == [notation.frame(answer).value] * is_answered


async def test_a_client_makes_the_requests_of_its_case_and_no_others(autojump_clock: object) -> None:
    for said, why in (('ask 1 "q"', "expected nothing for 1 s"), ('push "m"', ""), ('ext_ignorable 0 7 ""', "")):
        result = await played("< client_setup\nsilent 1", ["setup", said], role="client")
        assert why in result.why
        assert bool(why) is (result.outcome is CaseOutcome.FAIL)


@pytest.mark.parametrize(
    ("role", "steps", "said"),
    [
        ("server", '<= 1 "a"\ngranted 1 1', ["hex 00000001 207f 80000001", "hex 00000001 287f 61"]),
        ("client", '< ask 1 "q" ; stream 3 2 "s"', ["hex 00000001 1020 71", "hex 00000003 1820 00000002 73"]),
    ],
)
async def test_bits_that_should_be_0_are_looked_at_in_a_case_about_them_alone(
    autojump_clock: object, role: str, steps: str, said: list[str]
) -> None:
    assert (await played(steps, said, role=role)).why == ""

    ours, theirs = memory_pair()
    await theirs.send([NOTATION.frame(frame).value for frame in reversed(said)])
    about_them = attrs.evolve(case(steps, role=role), unused_bits=True)
    assert "came, expected" in (await play(about_them, WireEnd(ours, NOTATION), PATIENCE)).why


async def test_what_comes_while_a_probe_waits_is_told(autojump_clock: object) -> None:
    assert "came, expected nothing but the answer" in (await played("> setup\nalive", ["cancel 1"])).why


async def test_a_large_frame_does_not_fill_the_reason(autojump_clock: object) -> None:
    result = await played('<= 1 "y"*100000', ['last 1 "x"*100000'])
    assert "... 100006 bytes came, expected" in result.why
    assert len(result.why) < 500


OTHER = {"from": "rsocket_1_0.toml", "cases": ["request-is-answered"]}


def taken(**fields: object) -> list[tuple[str, str, Level | None]]:
    """The cases taken from another dialect: id, clauses and level of each."""
    rows = rows_taken(msgspec.convert({**OTHER, **fields}, Taken))
    return [(row.id, row.clauses, row.level) for row in rows]


def test_a_case_of_another_dialect_is_taken_with_clauses_beside_its_own_or_in_their_place() -> None:
    name = "request-is-answered"

    assert taken(clauses="RSX-GEN-02") == [(name, "RS10-SEQ-01 RS10-PAY-02 RSX-GEN-02", Level.IMPLIED)]
    assert taken(clauses={"RS10-SEQ-01": "A-1 A-2", "RS10-PAY-02": "A-2"}) == [(name, "A-1 A-2", None)]
    assert taken(cases={name: "A-3"}) == [(name, "A-3", None)]


@pytest.mark.parametrize("dialect", TESTED_DIALECTS)
def test_the_names_in_a_file_are_known(dialect: str) -> None:
    cases = read_chapter(dialect).cases

    assert len({(case.id, case.role) for case in cases}) == len(cases)
    for case in cases:
        assert {*case.needs} <= {*NEEDS, *OPTIONS}, case
        assert {*case.lacks} <= {*OPTIONS}, case
        assert case.asks in TERMS["asks"], case
        assert {*case.clauses} <= {*clauses()}, case


def test_the_level_of_a_case_is_that_of_its_weightiest_clause() -> None:
    must, fact, drawing, should, may, reading = (
        "RS10-FLOW-01", "RS10-SEQ-01", "RS10-PAY-01", "RS10-HDR-04", "RS10-SEQ-05", "ALL-RCT-04"
    )  # fmt: skip
    assert level_of((reading, fact, must)) is Level.MUST
    assert level_of((reading, fact)) is level_of((may, drawing)) is Level.IMPLIED
    assert level_of((reading, should)) is level_of((may,)) is Level.SHOULD
    assert level_of((reading,)) is Level.READING
    assert [level.is_binding for level in Level] == [True, True, False, False]


@pytest.mark.parametrize("dialect", sorted(TESTED_DIALECTS))
def test_no_case_weighs_more_than_its_clauses(dialect: str) -> None:
    lowered = [case for case in read_chapter(dialect).cases if case.level is not level_of(case.clauses)]
    weights = list(Level)

    assert [case.id for case in lowered if weights.index(case.level) < weights.index(level_of(case.clauses))] == []


# Several connections


class Served:
    """A peer that reads, over as many connections as are opened."""

    def __init__(self, *said: Sequence[str]) -> None:
        self._said = list(said)
        self._ends: list[MemoryTransport] = []
        self.heard: list[bytes] = []

    async def connect(self) -> WireEnd:
        """Open another connection, over which the peer says what is next."""
        ours, theirs = memory_pair()
        self._ends.append(theirs)
        if said := self._said.pop(0):
            await theirs.send([NOTATION.frame(frame).value for frame in said])
        return WireEnd(ours, NOTATION)

    async def played(self, steps: str, *, role: str = "server") -> CaseResult:
        """Play steps of a session that can be resumed, and end the connections."""
        made = attrs.evolve(case(steps), needs=("resume",), role=role)
        result = await play(made, await self.connect(), PATIENCE, self.connect)
        for end in self._ends:
            with trio.move_on_after(1):
                while frames := await end.receive():
                    self.heard += frames
        return result


async def test_steps_are_played_over_another_connection_and_back(autojump_clock: object) -> None:
    peer = Served(['item 1 "a"', 'item 1 "b"'], ['item 1 "c"'])
    result = await peer.played('< item 1 "a"\nconnect\n< item 1 "c"\non 1\n< item 1 "b"\ncut\n> cancel 1')

    assert (result.outcome, result.why) == (CaseOutcome.PASS, "")
    assert peer.heard == []
    assert [one.event for one in result.record if one.event] == [
        "connection 2",
        "on connection 1",
        "connection 1 is cut",
    ]


async def test_positions_count_what_came_and_what_was_sent(autojump_clock: object) -> None:
    peer = Served(['item 1 "a"', 'keepalive 0 ""', "request_n 1 9", 'item 1 "b"', "complete 1"])
    steps = '> ask 1 "q" ; keepalive 0 "k"\n< item 1 "a" ; item 1 "b"\n> resume {token} {received} {sent}'
    assert (await peer.played(steps)).why == ""

    said = peer.heard[-1].hex(" ", 8)
    assert len(peer.heard[-1]) == 6 + 4 + 2 + 16 + 16
    assert peer.heard[-1][-16:] == (7 + 10 + 7).to_bytes(8, "big") + (7).to_bytes(8, "big"), said


async def test_frames_that_are_said_to_be_lost_count_when_they_come_again(autojump_clock: object) -> None:
    peer = Served(['item 1 "a"', 'item 1 "b"'], ['item 1 "b"'])
    steps = '< item 1 "a" ; item 1 "b"\nlose item 1 "b"\n> resume "" {received} 0\nconnect\n< item 1 "b"\n'
    assert (await peer.played(steps + '> resume "" {received} 0')).why == ""

    assert [int.from_bytes(frame[12:20], "big") for frame in peer.heard] == [7, 14]
    assert "no such frame came" in (await Served([]).played('lose item 1 "a"')).why


async def test_a_frame_that_is_said_to_be_lost_may_have_come_in_fragments(autojump_clock: object) -> None:
    peer = Served(['item 1 "a"', 'item_more 1 "b"', 'item 1 "c"'], ['item_more 1 "b"', 'item 1 "c"'])
    steps = '< item 1 "a" ; item 1 "bc"\nlose item 1 "bc"\n> resume "" {received} 0\nconnect\n< item 1 "bc"\n'
    assert (await peer.played(steps + '> resume "" {received} 0')).why == ""

    assert [int.from_bytes(frame[12:20], "big") for frame in peer.heard] == [7, 21]


async def test_a_client_is_gone_if_it_begins_anew_alone(autojump_clock: object) -> None:

    again = await Served([], ['client_resume "abc" 0 0']).played("gone 5", role="client")
    assert "expected no other attempt to resume" in again.why

    anew = Served([], ["setup"], [])
    result = await anew.played("gone 5", role="client")
    assert (result.outcome, result.why) == (CaseOutcome.PASS, "")


async def test_a_case_of_one_connection_opens_no_other(autojump_clock: object) -> None:
    assert "there is no other connection" in (await played("connect", [])).why
