"""Plays one case against a peer: sends what it says, and holds what comes back to it."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from itertools import count
from typing import Final, TypeAlias

import attrs
import trio

from rsocket_trio.conformance.catalogue import Case, Step, Word, each_of, pieces
from rsocket_trio.conformance.notation import REQUESTS, Fragments, FramePattern, Notation, Torn, Unfit, shown, valued
from rsocket_trio.conformance.streamux_notation import Disagreed, Streamux, check_offer, offer_of
from rsocket_trio.conformance.wire import Ended, Passed, Positions, StepFailure, WireEnd

PROBES = 0x7F00
"""Stream ids above this one are those of probes where a probe is a request: no case uses ids as high. They are odd or
even as those of the tester's side are."""
BEATS = {"keepalive": "keepalive_answer", "beat": "beat_answer"}
"""The templates of frames that ask whether the tester lives, and of the answers."""
AT_A_TIME = 500
"""Frames that are sent before what they lead to is read, so that neither side waits for the other."""
DRIP = 0.001
"""Seconds between two bytes that are sent one at a time."""
PAUSE = 0.1
"""Seconds between the two parts of what is sent in two."""
LONG_INTERVAL, LONG_LIFETIME = 3.0, 10.0
"""Seconds above which a client's interval or lifetime makes a case about it too slow."""
FLOOD = 5000
"""Frames that may come in a row where each is a grant or a sign of life. A peer that sends more floods the tester."""
OVERRUN_LIMIT = 10_000
"""Items that a case sends at most to exceed a grant. Above it the peer has granted without bounds."""
TOKEN_SIZE: Final = 16
"""Bytes of a token that nobody else has."""
REJECTED: Final = 0x202
REJECTION: Final = b"the tester serves no requests"
LATER: Final = frozenset({"CANCEL", "REQUEST_N", "PAYLOAD", "ERROR"})
"""The types that may follow a request on its stream."""
LATER_ON_SHARED_ID: Final = frozenset({"CANCEL", "REQUEST_N"})
"""The same where both sides may use one id for two streams: only a requester sends these."""


class CaseOutcome(Enum):
    """The result of a case."""

    PASS = "pass"
    DEVIATION = "allowed deviation"
    FAIL = "fail"
    NOT_APPLICABLE = "not applicable"


@attrs.frozen
class CaseResult:
    """The result of one case: why it is no pass, the step where that showed, and what passed on the wire."""

    case: Case
    outcome: CaseOutcome
    why: str = ""
    step: str = ""
    record: tuple[Passed, ...] = ()
    seconds: float = 0.0
    """The time that it took."""


def broken(case: Case) -> CaseOutcome:
    return CaseOutcome.FAIL if case.level.is_binding else CaseOutcome.DEVIATION


class MilderFailure(StepFailure):
    """The peer ended the connection as it should, and said it in other words."""


class NotApplicable(Exception):
    """The peer makes the case meaningless, as by granting without bounds."""


Connect: TypeAlias = Callable[[], Awaitable[WireEnd]]
"""Opens another connection to the peer, or waits for one that it opens. Raise ``StepFailure`` if none comes in time."""


class Player:
    """Plays the steps of one case over one connection, and those that ``connect`` opens.

    What a peer may send at any time is answered and passed over where no step expects it: KEEPALIVE, METADATA_PUSH, EXT
    with I, and a server's own requests. A peer with leases grants them again and again: those of a client, and those of
    a server behind the first, are passed over, too. Payloads may come in fragments, and bits that should be 0 may be 1,
    but that with ``as_sent`` steps look at each frame as it was sent.

    One task plays: nobody else reads the connection, so a step that waits for a frame is what reads. What the peer asks
    for meanwhile is answered right there, before the next frame is read: a peer may wait for that answer before it does
    what the step expects. Between two steps nothing is read, so what comes then is seen, and judged, by the next one.

    ``_granted`` and ``_kept`` bridge steps: a grant may come before the step that needs it, and a step that waits for
    one keeps the items that overtake it for those behind.
    """

    def __init__(self, case: Case, end: WireEnd, patience: float, connect: Connect, *, as_sent: bool = False) -> None:
        role, notation = case.role, end.notation
        self._sees_unused_bits = case.unused_bits or as_sent
        self._joins = not as_sent
        self._fragments = Fragments(notation.headers)
        self._end = end
        self._ends = [end]
        self._connect = connect
        self._patience = patience
        self._token = secrets.token_bytes(TOKEN_SIZE) if role == "server" else b""
        self._positions = Positions(notation.resumable)
        # A server's ids are the other ones of 1 and 2.
        self._probes = count(PROBES + (notation.first_id if role == "server" else 3 - notation.first_id), 2)
        self._granted: Counter[int] = Counter()
        self._kept: list[bytes] = []
        self._is_mute = False
        self._asides = 0
        """Frames in a row that may come at any time."""
        self._is_client = role == "client"
        self._has_begun = False
        """True once the connection is set up, from when on the peer may send frames of its own."""
        self._served: set[int] = set()
        """The streams that a server under test has opened."""
        self._grants_leases = "leases" in case.needs and role == "client"
        self._times: dict[str, int] = {}
        """The interval and the lifetime of the client's SETUP, in milliseconds."""

    async def play(self, step: Step) -> None:
        """Play one step. Raise ``StepFailure`` for a peer that does something else."""
        positions = self._positions
        values: dict[str, int | bytes] = {"token": self._token, "sent": positions.sent, "received": positions.received}
        step = attrs.evolve(step, rest=valued(step.rest, values))
        self._asides = 0
        match step.word:
            case Word.SEND:
                await self._send(*self._frames(step.rest))
            case Word.RAW:
                await self._end.send_raw(self._notation.frame(step.rest).value)
            case Word.DRIP:
                data = self._on_the_wire(step.rest)
                await self._send_parts([data[at : at + 1] for at in range(len(data))], DRIP)
            case Word.SPLIT:
                size, _, frames = step.rest.partition(" ")
                data = self._on_the_wire(frames)
                await self._send_parts([data[: int(size)], data[int(size) :]], PAUSE)
            case Word.EACH:
                await self._each(step.rest, AT_A_TIME)
            case Word.IN_TURN:
                await self._each(step.rest, 1)
            case Word.TIMES:
                times, _, frame = step.rest.partition(" ")
                await self._send(*[self._notation.frame(frame).value] * int(times))
            case Word.EXPECT:
                for piece in pieces(step.rest):
                    await self._expect([piece])
            case Word.EXPECT_ALL:
                expected = pieces(step.rest)
                while expected:
                    expected.remove(await self._expect(expected))
            case Word.EXPECT_LATER:
                await self._expect([step.rest], items_before=True)
            case Word.ANSWERED:
                await self._expect_answers(pieces(step.rest))
            case Word.COUNTED:
                stream_id, first, last = step.numbers
                for number in range(first, last + 1):
                    await self._expect([f'item {stream_id} "{number}"'])
            case Word.GRANTED | Word.ROOM:
                await self._expect_grant(*step.numbers, is_needed=step.word is Word.GRANTED)
            case Word.ALIVE:
                await self._expect_alive()
            case Word.CLOSED:
                await self._expect_end()
            case Word.FAILED:
                await self._expect_failure(step.numbers)
            case Word.SILENT:
                seconds, _, frames = step.rest.partition(" ")
                await self._expect_silence(float(seconds), pieces(frames) if frames else [])
            case Word.OVERRUN:
                await self._overrun(*step.numbers)
            case Word.MUTE:
                self._is_mute = True
            case Word.BEATS:
                await self._expect_beats(*step.numbers)
            case Word.OUTLIVED:
                await self._expect_end_of_life()
            case Word.HALF_CLOSE:
                await self._end.half_close()
            case Word.AGREED:
                await self._expect_agreement()
            case Word.REFUSED:
                await self._expect_refusal()
            case Word.ASKED:
                await self._expect_requests(pieces(step.rest))
            case Word.CUT:
                self._note(f"connection {self._ends.index(self._end) + 1} is cut")
                await self._end.cut()
            case Word.CONNECT:
                end = await self._connect()
                end.record = self._end.record
                self._end = end
                self._ends.append(end)
                self._note(f"connection {len(self._ends)}")
            case Word.ON:
                self._end = self._ends[int(step.rest) - 1]
                self._note(f"on connection {step.rest}")
            case Word.LOSE:
                self._lose(step.rest)
            case Word.WAIT:
                await trio.sleep(float(step.rest))
            case Word.GONE:
                await self._expect_gone(float(step.rest))

    @property
    def _notation(self) -> Notation:
        return self._end.notation

    def _frames(self, rest: str) -> list[bytes]:
        return [self._notation.frame(piece).value for piece in pieces(rest)]

    def _on_the_wire(self, rest: str) -> bytes:
        return b"".join(map(self._notation.with_length, self._frames(rest)))

    def _note(self, event: str) -> None:
        self._end.record.append(Passed(True, b"", event=event))

    def _lose(self, frame: str) -> None:
        try:
            lost, self._fragments = self._positions.lose(self._notation.frame(frame), self._notation.headers)
        except LookupError as error:
            raise StepFailure(str(error)) from None
        for lost_frame in lost:
            self._granted.subtract(self._grant_in(lost_frame))

    def _grant_in(self, frame: bytes) -> dict[int, int]:
        """Return the items that a frame grants, by its stream; nothing for a frame that is no grant."""
        if not self._notation.is_a("request_n", frame):
            return {}
        grant = self._notation.templates["request_n"].numbers_in(frame)
        return {grant["id"]: grant["n"]}

    async def _send(self, *frames: bytes) -> None:
        self._has_begun |= not self._is_client
        await self._end.send(*frames)
        for frame in frames:
            self._positions.note_sent(frame)

    async def _expect(self, expected: list[str], *, items_before: bool = False) -> str:
        """Return which of these frames came next. ``items_before`` lets items of streams come before them."""
        patterns = [(piece, text, self._notation.frame(text)) for piece in expected for text in piece.split(" or ")]
        item = self._notation.any_of("more" if self._notation.negotiates else "item")
        only = tuple(pattern for _, _, pattern in patterns)
        ends = trio.current_time() + self._patience
        frame = await self._next(only)
        while items_before and item.fits(frame) and not any(pattern.fits(frame) for pattern in only):
            if trio.current_time() >= ends:
                raise StepFailure(f"nothing but items came in {self._patience:g} s, expected {' ; '.join(expected)}")
            frame = await self._next(only)
        for piece, text, pattern in patterns:
            if pattern.fits(frame):
                self._notation.bind(text, frame)
                self._keep(frame)
                return piece
        # A client under test may have skipped an id: that is no fault, and the rest of the case would not fit it.
        for _, text, _ in patterns if self._is_client else ():
            if (stream_id := self._notation.other_id(text, frame)) is not None:
                raise NotApplicable(f"the client asks on stream {stream_id}, which may be, where the case needs {text}")
        raise StepFailure(f"{shown(frame)} came, expected {' or '.join(str(pattern) for _, _, pattern in patterns)}")

    async def _expect_answers(self, expected: list[str]) -> None:
        answers = [self._notation.answer(text) for text in expected]
        while answers:
            frame = await self._next()
            taken = next((answer for answer in answers if answer.take(frame)), None)
            if taken is None:
                others = f", or one of {len(answers) - 1} others" if len(answers) > 1 else ""
                raise StepFailure(f"{shown(frame)} came, expected {answers[0].pattern}{others}")
            if taken.is_over:
                answers.remove(taken)

    async def _each(self, rest: str, at_a_time: int) -> None:
        """Send a frame for each id, so many at a time, and take what comes back for them, in any order."""
        ids, sent, sign, back = each_of(rest)
        # Were all sent first, a peer that answers as it reads would fill both directions, and each side would wait.
        for start in range(0, len(ids), at_a_time):
            part = ids[start : start + at_a_time]
            await self._send(*[self._notation.frame(sent.replace("#", str(stream_id))).value for stream_id in part])
            if sign == Word.ANSWERED.value:
                await self._expect_answers([back.replace("#", str(stream_id)) for stream_id in part])
                continue
            patterns = [self._notation.frame(back.replace("#", str(stream_id))) for stream_id in part] if sign else []
            while patterns:
                frame = await self._next(tuple(patterns))
                fitting = next((pattern for pattern in patterns if pattern.fits(frame)), None)
                if fitting is None:
                    raise StepFailure(f"{shown(frame)} came, expected {patterns[0]}, or the same on another stream")
                patterns.remove(fitting)

    async def _send_parts(self, parts: Sequence[bytes], pause: float) -> None:
        self._has_begun |= not self._is_client
        for part in parts:
            await self._end.send_raw(part)
            await trio.sleep(pause)

    async def _expect_grant(self, stream_id: int, number: int, *, is_needed: bool) -> None:
        """Wait until so many items are granted; what comes before is kept for the steps that expect it.

        Raise ``StepFailure`` for fewer, or ``NotApplicable`` if the peer need not grant as many.
        """
        with trio.move_on_after(self._patience):
            while self._granted[stream_id] < number:
                frame = await self._take()
                if frame is not None and not await self._is_aside(frame):
                    self._kept.append(frame)
        granted = self._granted[stream_id]
        if granted < number and not is_needed:
            raise NotApplicable(f"the peer granted {granted} items on stream {stream_id}, the case needs {number}")
        if granted < number:
            where = f"on stream {stream_id} in {self._patience:g} s"
            raise StepFailure(f"{granted} items were granted {where}, expected {number}")

    async def _receive(self) -> bytes | None:
        """Return the next frame, or a payload once its last fragment came. Return ``None`` for other fragments."""
        return self._kept.pop(0) if self._kept else await self._take()

    async def _take(self) -> bytes | None:
        """Read the next frame. Return it, or a payload once its last fragment came, else ``None``."""
        frame = await self._end.receive()
        # The order counts: patterns know no unused bits; the dialect and positions are about frames as they passed, of
        # which a payload may have several; and what is joined in the end is one frame to all steps.
        if not self._sees_unused_bits:
            frame = self._notation.headers.cleared(frame)
        try:
            self._notation.note(frame)
            self._positions.note_received(frame)
            self._token = self._token or self._notation.token_in(frame) or b""
            return self._fragments.take(frame) if self._joins else frame
        except Torn as fault:
            raise StepFailure(f"{shown(frame)} came: {fault}") from None

    async def _next(self, expected: tuple[FramePattern, ...] = ()) -> bytes:
        """Return the next frame that says something: grants and signs of life are taken note of, and answered."""
        with trio.move_on_after(self._patience) as scope:
            while True:
                frame = await self._receive()
                # What the step expects comes first: it may be a frame that is passed over elsewhere.
                if frame is None:
                    scope.deadline = trio.current_time() + self._patience
                elif any(pattern.fits(frame) for pattern in expected) or not await self._is_aside(frame):
                    return frame
        if begun := self._fragments.pending:
            raise StepFailure(f"{shown(begun)} came, and not the rest of it in {self._patience:g} s")
        if rest := self._end.rest:
            raise StepFailure(f"no whole frame came in {self._patience:g} s, but {rest[:40].hex(' ')}")
        raise StepFailure(f"nothing came in {self._patience:g} s")

    async def _is_aside(self, frame: bytes) -> bool:
        """Return whether the frame may come at any time: a grant, or a KEEPALIVE, which is answered.

        Raise ``StepFailure`` once too many have come in a row.
        """
        is_aside = await self._is_taken(frame)
        self._asides = self._asides + 1 if is_aside else 0
        if self._asides > FLOOD:
            raise StepFailure(f"{self._asides} frames came in a row that say nothing, the last one {shown(frame)}")
        return is_aside

    async def _is_taken(self, frame: bytes) -> bool:
        """Return whether the frame may come at any time, after what it asks for is done."""
        if (answer := self._notation.answer_aside(frame)) is not None:
            await self._end.send(answer)
            return True
        if grant := self._grant_in(frame):
            self._granted.update(grant)
            return True
        for name, name_of_answer in BEATS.items():
            if self._notation.is_a(name, frame):
                if not self._is_mute:
                    await self._send(self._answer(frame, name, name_of_answer))
                return True
        if self._notation.is_a("position", frame) or (self._grants_leases and self._is_lease(frame)):
            return True
        answer = self._answer_unasked(frame) if self._has_begun else None
        if answer and not self._is_mute:
            await self._send(answer)
        return answer is not None

    def _answer_unasked(self, frame: bytes) -> bytes | None:
        """Return the answer to a server's own request, METADATA_PUSH, or EXT with I, empty if there is none.

        A request is rejected; ReactiveSocket 0.0 has no code for that, and Streamux no error. A client makes the
        requests of its case alone. Return ``None`` for a frame that needs a reason.
        """
        notation = self._notation
        if isinstance(notation, Streamux):
            return None if self._is_client else notation.answer_request(frame)
        headers = notation.headers
        kind, stream_id = headers.kind(frame).name, headers.stream_id(frame)
        # Before 1.0 a server may go by the first id of its client.
        may_open = stream_id > 0 and (notation.id_steps > 0 or (stream_id - notation.first_id) % 2 == 1)
        if kind in REQUESTS and may_open and not self._is_client:
            is_known = stream_id in self._served
            self._served.add(stream_id)
            return b"" if is_known or kind == "REQUEST_FNF" else notation.error(stream_id, REJECTED, REJECTION)
        if kind == "METADATA_PUSH":
            return b"" if not stream_id and headers.has(frame, "metadata") else None
        later = LATER_ON_SHARED_ID if notation.id_steps == 1 else LATER
        return b"" if headers.is_foreign_extension(frame) or (stream_id in self._served and kind in later) else None

    def _is_lease(self, frame: bytes) -> bool:
        return self._notation.is_a("lease", frame) or self._notation.is_a("lease_described", frame)

    def _answer(self, keepalive: bytes, kind: str, kind_of_answer: str) -> bytes:
        """Return the answer to a KEEPALIVE of the peer: the same data, and the tester's position, which is none."""
        asked, answer = (self._notation.templates[name].fields for name in (kind, kind_of_answer))
        head = len(self._notation.fill(kind, *[b"" if name == "data" else 0 for name in asked]).value)
        values = [keepalive[head:] if name == "data" else 0 for name in answer]
        return self._notation.fill(kind_of_answer, *values).value

    async def _expect_alive(self) -> None:
        number, fields = self._notation.probe_id(next(self._probes)), self._notation.templates["probe"].fields
        arguments = [number if name == "id" else b"probe %d" % number for name in fields]
        await self._send(self._notation.fill("probe", *arguments).value)
        expected = self._notation.fill("probe_answer", *arguments)
        try:
            frame = await self._next((expected,))
        except StepFailure as failure:
            raise StepFailure(f"{failure}, and {expected} was to answer a probe") from None
        if begun := self._fragments.pending if expected.fits(frame) else frame:
            raise StepFailure(f"{shown(begun)} came, expected nothing but the answer to a probe, {expected}")

    async def _expect_offer(self) -> Streamux:
        """Wait for the peer's initialize message, unless it has come. Raise ``StepFailure`` if no peer may send it."""
        notation = self._notation
        assert isinstance(notation, Streamux)
        if not notation.has_greeted:
            frame = await self._next((notation.frame("any_init"),))
            try:
                check_offer(offer_of(frame))
            except Disagreed as reason:
                raise StepFailure(f"the peer's initialize message is {shown(frame)}: {reason}") from None
        return notation

    async def _expect_agreement(self) -> None:
        notation = await self._expect_offer()
        if notation.fault:
            raise NotApplicable(f"the peer offers {notation.fault}")

    async def _expect_refusal(self) -> None:
        try:
            notation = await self._expect_offer()
        except Ended as ended:
            if ended.rest:
                raise StepFailure(f"{shown(ended.rest)} came, expected a whole initialize message or none") from None
            return
        if notation.is_agreed:
            raise NotApplicable("the two initialize messages agree")
        with trio.move_on_after(self._patience):
            try:
                frame = await self._end.receive()
            except Ended:
                return
            raise StepFailure(f"{shown(frame)} came, expected nothing after a negotiation that failed")
        raise MilderFailure(f"the connection is still open after {self._patience:g} s, though the negotiation failed")

    async def _expect_requests(self, expected: list[str]) -> None:
        """Take these requests of the peer's, cut as it likes, and let their names stand for their ids."""
        notation = self._notation
        assert isinstance(notation, Streamux)
        begun: dict[int, bytes] = {}
        while expected:
            frame = await self._next()
            chunk = notation.parsed(frame)
            data = begun.get(chunk.id, b"") + chunk.data
            whole = [piece for piece in expected if notation.is_request(piece, chunk.id, data)]
            if chunk.response or not (chunk.data or (chunk.last and data)) or (chunk.last and not whole):
                raise StepFailure(f"{shown(frame)} came, expected {' ; '.join(expected)}")
            begun[chunk.id] = data
            if chunk.last:
                del begun[chunk.id]
                notation.bind(whole[0], frame)
                expected.remove(whole[0])

    async def _expect_end(self) -> None:
        try:
            frame = await self._next()
        except Ended as ended:
            if ended.rest:
                raise StepFailure(f"{shown(ended.rest)} came, expected the end and nothing before it") from None
            return
        raise StepFailure(f"{shown(frame)} came, expected the end of the connection")

    async def _expect_failure(self, allowed: list[int]) -> None:
        named = " or ".join(f"0x{code:x}" for code in allowed)
        try:
            frame = await self._next()
        except Ended:
            raise MilderFailure(f"the connection ended without an ERROR, expected one of {named} before") from None
        if not self._notation.is_a("failure", frame):
            raise StepFailure(f"{shown(frame)} came, expected an ERROR of {named}")
        await self._end_after(frame)
        if not any(self._notation.fill("failure", code).fits(frame) for code in allowed):
            raise MilderFailure(f"{shown(frame)} came before the end, expected an ERROR of {named}")

    async def _end_after(self, frame: bytes) -> None:
        try:
            more = await self._next()
        except Ended:
            return
        except StepFailure:
            raise StepFailure(f"the connection went on after {shown(frame)}") from None
        raise StepFailure(f"{shown(more)} came after {shown(frame)}, expected the end")

    async def _expect_silence(self, seconds: float, excluded: Sequence[str]) -> None:
        patterns = [self._notation.frame(text) for text in excluded]
        with trio.move_on_after(seconds):
            while True:
                frame = await self._receive()
                if frame is None:
                    continue
                if any(pattern.fits(frame) for pattern in patterns) or not await self._is_aside(frame):
                    raise StepFailure(f"{shown(frame)} came, expected nothing for {seconds:g} s")
        if begun := self._fragments.pending:
            raise StepFailure(f"{shown(begun)} came, expected nothing for {seconds:g} s")

    async def _expect_gone(self, seconds: float) -> None:
        """Close the connections that a client opens anew. Raise ``StepFailure`` for one that asks to resume."""
        asks = self._notation.any_of("client_resume")
        with trio.move_on_after(seconds):
            while True:
                end = await self._connect()
                try:
                    frame = self._notation.headers.cleared(await end.receive())
                except Ended:
                    continue
                if asks.fits(frame):
                    raise StepFailure(f"{shown(frame)} came, expected no other attempt to resume")
                await end.cut()

    def _keep(self, frame: bytes) -> None:
        """Keep what an expected frame says for steps to come."""
        self._has_begun = True
        if self._notation.is_a("client_times", frame):
            self._times = self._notation.templates["client_times"].numbers_in(frame)
        self._grants_leases = self._grants_leases or self._is_lease(frame)

    def _seconds(self, name: str, limit: float) -> float:
        """Return a time of the client's SETUP. Raise ``NotApplicable`` if it is unknown or too long to wait for."""
        if name not in self._times:
            raise NotApplicable(f"SETUP says no {name} where one looks for it")
        seconds = self._times[name] / 1000
        if seconds > limit:
            raise NotApplicable(f"the client's {name} is {seconds:g} s, above {limit:g} s")
        return seconds

    async def _expect_beats(self, number: int) -> None:
        """Wait for KEEPALIVEs of the client, each an interval after the one before; the first may come at once."""
        interval = self._seconds("interval", LONG_INTERVAL)
        beats = tuple(self._notation.any_of(name) for name in BEATS if name in self._notation.templates)
        for heard in range(number):
            with trio.move_on_after(2 * interval + self._patience / 5) as scope:
                frame = await self._next(beats)
                if not any(beat.fits(frame) for beat in beats):
                    raise StepFailure(f"{shown(frame)} came, expected a KEEPALIVE that asks for an answer")
                await self._is_aside(frame)
            if scope.cancelled_caught:
                raise StepFailure(f"{heard} of {number} KEEPALIVEs came, one every {interval:g} s was to come")

    async def _expect_end_of_life(self) -> None:
        """Say nothing, and wait for the client to end the connection when its lifetime is over, not much earlier."""
        lifetime = self._seconds("lifetime", LONG_LIFETIME)
        self._is_mute = True
        begun = trio.current_time()
        with trio.move_on_after(lifetime + self._patience):
            try:
                while True:
                    frame = await self._receive()
                    if (
                        frame is not None
                        and not await self._is_aside(frame)
                        and not self._notation.is_a("failure", frame)
                    ):
                        raise StepFailure(f"{shown(frame)} came, expected KEEPALIVE or the end")
            except Ended:
                pass
            if trio.current_time() - begun < lifetime / 2:
                raise StepFailure(f"the end came before the lifetime of {lifetime:g} s was over")
            return
        raise StepFailure(f"the connection went on for {self._patience:g} s after the lifetime of {lifetime:g} s")

    async def _overrun(self, stream_id: int, beyond: int) -> None:
        granted = self._granted[stream_id]
        if granted + beyond > OVERRUN_LIMIT:
            raise NotApplicable(f"the peer granted {granted} items, which is as good as all")
        item = self._notation.fill("channel_item", stream_id, b"x").value
        await self._send(*[item] * (granted + beyond))


async def unconnected() -> WireEnd:
    """Raise ``StepFailure``: there is one connection."""
    raise StepFailure("there is no other connection")


async def play(case: Case, end: WireEnd, patience: float, connect: Connect = unconnected) -> CaseResult:
    """Play a case over a connection. Return its result; a step may take ``patience`` seconds."""
    player = Player(case, end, patience, connect)
    for step in case.steps:
        try:
            await player.play(step)
        except (NotApplicable, Unfit) as reason:
            return CaseResult(case, CaseOutcome.NOT_APPLICABLE, str(reason), step.line, tuple(end.record))
        except StepFailure as failure:
            outcome = CaseOutcome.DEVIATION if isinstance(failure, MilderFailure) else broken(case)
            return CaseResult(case, outcome, str(failure), step.line, tuple(end.record))
    return CaseResult(case, CaseOutcome.PASS, record=tuple(end.record))
