"""Runs cases against a server, a connection each and several at a time, after a look at whether it is one."""

from __future__ import annotations

import math
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TypeAlias

import attrs
import trio

from rsocket_trio.conformance.catalogue import Case, Level, Step, Word, chapters
from rsocket_trio.conformance.fragments import Fragments
from rsocket_trio.conformance.header import Torn
from rsocket_trio.conformance.play import PROBES, Outcome, Result, broken, play
from rsocket_trio.conformance.routes import DIALECT, Routes
from rsocket_trio.conformance.wire import Ended, WireEnd
from rsocket_trio.errors import ConnectionLost
from rsocket_trio.limits import Limits
from rsocket_trio.transports.base import Transport
from rsocket_trio.transports.connect import HeadersLike, open_transport

AT_ONCE = 16
"""Cases that run at the same time, each over a connection of its own."""
PATIENCE = 5.0
"""Seconds in which the peer has to do what a step expects."""
CASE_TIME = 60.0
"""Seconds after which a case ends whatever it waits for."""
AGAIN = 1
"""Further plays of a case that ran out of time."""
MORE_PATIENCE = 4
"""The patience of a further play, by that of the first one."""
ALONE = 5
"""Cases in a row that run out of time again, each alone, until the ones left are played side by side: it is not the
company that delays them."""
IN_TURN = 5
"""The time of a case in which hundreds of requests wait for each other, by that of others: a line may be slow."""
GREETING = ((Word.SEND, "setup"), (Word.AGREED, ""), (Word.ALIVE, ""))
"""The steps that a server must pass to count as one of a dialect with initialize messages."""
UNREACHABLE = "the server can't be reached any more"
"""Begins the reason of a case for which no connection could be opened."""

Dial: TypeAlias = Callable[[], AbstractAsyncContextManager[Transport]]
More: TypeAlias = Callable[[], AbstractAsyncContextManager[WireEnd]]
"""Opens another connection of a case, or waits for it. Raise ``Failure`` if a client does not come."""
Play: TypeAlias = Callable[[Case], Awaitable[Result]]
"""Plays a case."""


class WrongServer(Exception):
    """The server is there, and does not speak what is tested."""


class NotInTime(ConnectionLost):
    """The server may be there: a connection to it took too long."""


@attrs.frozen
class Target:
    """The server under test: how to reach it, and the interactions and options that it has."""

    dial: Dial
    abilities: frozenset[str]
    patience: float = PATIENCE
    at_once: int = AT_ONCE
    routes: Routes | None = None
    """The routes of its interactions and the credentials that it asks for, where there are some."""
    connect_timeout: float | None = None
    """Seconds until a connection is open; ``None`` for those of a step, ``patience``."""
    again: int = 0
    """Further plays of a case that ran out of time, with more patience."""
    case_time: float = CASE_TIME
    """Seconds after which a case ends."""

    def more_patient(self) -> Target:
        """Return the same server, with more time for everything."""
        return attrs.evolve(
            self,
            patience=self.patience * MORE_PATIENCE,
            connect_timeout=self.connect_timeout and self.connect_timeout * MORE_PATIENCE,
            case_time=self.case_time * MORE_PATIENCE,
        )


def dial_to(uri: str, ssl_context: ssl.SSLContext | None = None, headers: HeadersLike = ()) -> Dial:
    """Return what opens a transport to a server."""
    return partial(open_transport, uri, ssl_context=ssl_context, headers=headers, limits=Limits())


@asynccontextmanager
async def _connected(target: Target) -> AsyncIterator[Transport]:
    """Open a transport for the block. Raise ``ConnectionLost``, ``NotInTime`` where the handshakes take too long."""
    seconds = target.patience if target.connect_timeout is None else target.connect_timeout
    with trio.move_on_after(seconds) as scope:
        async with target.dial() as transport:
            scope.deadline = math.inf
            yield transport
    if scope.cancelled_caught:
        raise NotInTime(f"the connection was not there after {seconds:g} s")


def _end(target: Target, transport: Transport, dialect: str) -> WireEnd:
    """Return the tester's end of a connection."""
    notation = chapters()[dialect].notation
    if target.routes is None or dialect != DIALECT:
        return WireEnd(transport, notation)
    written = partial(target.routes.written, setup=notation.frame("setup").value)
    return WireEnd(transport, notation, written, secret=target.routes.secret)


async def check_server(target: Target, dialect: str) -> None:
    """Raise ``WrongServer`` naming what the server speaks instead, ``ConnectionLost`` if it is not there."""
    found, first = await speaks(target, dialect)
    if found:
        return
    others: set[str] = set()

    async def ask(other: str) -> None:
        try:
            if (await speaks(target, other))[0]:
                others.add(other)
        except (ConnectionLost, WrongServer):
            # The server has gone, or takes no more connections: it speaks nothing that can be named.
            return

    # Side by side: a server that says nothing takes the whole patience for each of them.
    async with trio.open_nursery() as nursery:
        for other in chapters():
            if other != dialect:
                nursery.start_soon(ask, other)
    if others:
        raise WrongServer(f"the server speaks {' and '.join(sorted(others))}, not {dialect}")
    said = f"; it said {first[:40].hex(' ')}" if first else " and said nothing"
    raise WrongServer(f"the server took no {chapters()[dialect].notation.opening} of {dialect}{said}")


async def speaks(target: Target, dialect: str) -> tuple[bool, bytes]:
    """Return whether the server accepts a SETUP of this dialect and answers a probe, and the first bytes it said.

    Raise ``WrongServer`` for one that answers in a protocol of other transports, and ``ConnectionLost``.
    """
    chapter = chapters()[dialect]
    async with _connected(target) as transport:
        end = _end(target, transport, dialect)
        if chapter.notation.negotiates:
            steps = tuple(Step(word, rest, "") for word, rest in GREETING)
            result = await play(Case("", dialect, "server", "", (), Level.MUST, (), steps), end, target.patience)
            if end.wrong_protocol:
                raise WrongServer(end.wrong_protocol)
            is_right = result.outcome in (Outcome.PASS, Outcome.NOT_APPLICABLE)
            return is_right, next((one.data for one in end.record if not one.sent), end.rest)
        probe, answer = chapter.notation.templates["probe"], chapter.notation.templates["probe_answer"]
        arguments = [PROBES + chapter.notation.first_id if name == "id" else b"?" for name in probe.fields]
        await end.send(chapter.notation.frame("setup").value, probe.fill(arguments).value)
        frame, fragments = b"", Fragments(chapter.notation.headers)
        with trio.move_on_after(target.patience):
            try:
                while not answer.fill(arguments).fits(frame):
                    frame = fragments.take(chapter.notation.cleared(await end.receive())) or b""
            except Ended as ended:
                if end.wrong_protocol:
                    raise WrongServer(end.wrong_protocol) from None
                frame = ended.rest or frame
            except Torn:
                pass
        if answer.fill(arguments).fits(frame):
            return True, b""
        return False, next((one.data for one in end.record if not one.sent), frame) or end.rest


async def run(
    cases: Sequence[Case], target: Target, told: Callable[[Result], object] = lambda result: None
) -> list[Result]:
    """Run cases, and return their results in the same order; ``told`` hears of each as it ends.

    Cases that ran out of time are played again behind the others, unless the server has fallen silent altogether.
    """
    results = await side_by_side(cases, target.at_once, partial(_run_case, target=target), told)
    if not target.again or not any(result.timed_out for result in results):
        return results
    patient = target.more_patient()
    if not await _is_there(patient, cases[0].dialect):
        return results
    return await played_again(results, target.again, target.at_once, partial(_run_case, target=patient), told)


async def side_by_side(
    cases: Sequence[Case], at_once: int, play_one: Play, told: Callable[[Result], object] = lambda result: None
) -> list[Result]:
    """Play cases, so many at the same time. Return their results in the same order, with the time that each took."""
    results: dict[str, Result] = {}
    limiter = trio.CapacityLimiter(at_once)

    async def one(case: Case) -> None:
        async with limiter:
            began = trio.current_time()
            result = attrs.evolve(await play_one(case), seconds=trio.current_time() - began)
        results[case.id] = result
        told(result)

    async with trio.open_nursery() as nursery:
        for case in cases:
            nursery.start_soon(one, case)
    return [results[case.id] for case in cases]


async def played_again(
    results: Sequence[Result],
    times: int,
    at_once: int,
    play_one: Play,
    told: Callable[[Result], object] = lambda result: None,
) -> list[Result]:
    """Play the cases that ran out of time again, each up to so many times. Return all results in the same order.

    One is played after the other, until ``ALONE`` in a row have run out of time again.
    """
    found = {result.case.id: result for result in results}
    for _ in range(times):
        left = [result.case for result in found.values() if result.timed_out]
        in_a_row = 0
        while left:
            number, together = (1, 1) if in_a_row < ALONE else (len(left), at_once)
            some, left = left[:number], left[number:]
            for new in await side_by_side(some, together, play_one, told):
                found[new.case.id] = _behind(found[new.case.id], new)
                in_a_row = in_a_row + 1 if new.timed_out else 0
    return list(found.values())


def _behind(earlier: Result, new: Result) -> Result:
    """Return the result of a further play, with what the ones before it took."""
    return attrs.evolve(
        new,
        seconds=earlier.seconds + new.seconds,
        connections=earlier.connections + new.connections,
        again=earlier.again + 1,
        at_first=earlier.at_first or earlier.why,
    )


async def _is_there(target: Target, dialect: str) -> bool:
    """Return whether the server still answers."""
    try:
        return (await speaks(target, dialect))[0]
    except (ConnectionLost, WrongServer):
        return False


async def _run_case(case: Case, target: Target) -> Result:
    if (reason := lack(case, target.abilities)) is not None:
        return reason
    if target.routes and (obstacle := target.routes.obstacle(case, chapters()[case.dialect].notation)):
        return Result(case, Outcome.NOT_APPLICABLE, obstacle)
    # The time of the case itself begins with its connection, and what passed there is told.
    longest = time_of(case, target.case_time) + 2 * max(target.patience, target.connect_timeout or 0.0)
    with trio.move_on_after(longest):
        try:
            async with _connected(target) as transport:
                end = _end(target, transport, case.dialect)
                more = partial(_another, target, case)
                return await play_over(end, case, target.patience, more, target.case_time)
        except ConnectionLost as error:
            late = isinstance(error, NotInTime)
            return Result(case, Outcome.FAIL, f"{UNREACHABLE}: {error}", timed_out=late, connections=1)
    return Result(case, Outcome.FAIL, f"not over after {longest:g} s", timed_out=True, connections=1)


def lack(case: Case, abilities: frozenset[str]) -> Result | None:
    """Return the result of a case that does not apply to a peer with these interactions and options, else ``None``."""
    if lacking := [name for name in case.needs if name not in abilities]:
        return Result(case, Outcome.NOT_APPLICABLE, f"the peer has no {' and no '.join(lacking)}")
    if surplus := [name for name in case.lacks if name in abilities]:
        return Result(case, Outcome.NOT_APPLICABLE, f"the peer has {' and '.join(surplus)}")
    return None


@asynccontextmanager
async def _another(target: Target, case: Case) -> AsyncIterator[WireEnd]:
    """Open another connection for the case."""
    async with _connected(target) as transport:
        yield _end(target, transport, case.dialect)


async def play_over(end: WireEnd, case: Case, patience: float, more: More, case_time: float = CASE_TIME) -> Result:
    """Play a case over a connection, for ``time_of`` it at most, and over others that ``more`` opens."""
    longest = time_of(case, case_time)
    if case.streams_only and end.has_messages:
        return Result(case, Outcome.NOT_APPLICABLE, "it is about byte streams")
    if case.messages_only and not end.has_messages:
        return Result(case, Outcome.NOT_APPLICABLE, "it is about transports with messages")
    connections = 1
    with trio.move_on_after(longest):
        async with AsyncExitStack() as stack:

            async def connect() -> WireEnd:
                nonlocal connections
                connections += 1
                return await stack.enter_async_context(more())

            return attrs.evolve(await play(case, end, patience, connect), connections=connections)
    why, record = f"not over after {longest:g} s", tuple(end.record)
    return Result(case, broken(case), why, record=record, timed_out=True, connections=connections)


def time_of(case: Case, case_time: float = CASE_TIME) -> float:
    """Return the seconds after which a case ends, ``case_time`` for most."""
    return case_time * (IN_TURN if any(step.word is Word.IN_TURN for step in case.steps) else 1)
