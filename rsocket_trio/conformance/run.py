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

from rsocket_trio.conformance.catalogue import TESTED_DIALECTS, Case, Level, Step, Word, read_chapter
from rsocket_trio.conformance.play import CaseOutcome, CaseResult, broken, play
from rsocket_trio.conformance.wire import WireEnd
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
STEPS_OF_TIME = 12
"""The steps for which the patience lasts, where that is longer."""
IN_TURN = 5
"""The time of a case in which hundreds of requests wait for each other, by that of others: a line may be slow."""
UNREACHABLE = "the server can't be reached any more"
"""Begins the reason of a case for which no connection could be opened."""

Dial: TypeAlias = Callable[[], AbstractAsyncContextManager[Transport]]
More: TypeAlias = Callable[[], AbstractAsyncContextManager[WireEnd]]
"""Opens another connection of a case, or waits for it. Raise ``Failure`` if a client does not come."""
Play: TypeAlias = Callable[[Case], Awaitable[CaseResult]]
"""Plays a case."""


class WrongServer(Exception):
    """The server is there, and does not speak what is tested."""


@attrs.frozen
class Target:
    """The server under test: how to reach it, and the interactions and options that it has."""

    dial: Dial
    abilities: frozenset[str]
    patience: float = PATIENCE
    at_once: int = AT_ONCE


def dial_to(uri: str, ssl_context: ssl.SSLContext | None = None, headers: HeadersLike = ()) -> Dial:
    """Return what opens a transport to a server."""
    return partial(open_transport, uri, ssl_context=ssl_context, headers=headers, limits=Limits())


@asynccontextmanager
async def _connected(target: Target, dialect: str) -> AsyncIterator[WireEnd]:
    """Connect for the block. Raise ``ConnectionLost``, also where the handshakes take too long."""
    notation = read_chapter(dialect).notation
    with trio.move_on_after(target.patience) as scope:
        async with target.dial() as transport:
            scope.deadline = math.inf
            yield WireEnd(transport, notation)
    if scope.cancelled_caught:
        raise ConnectionLost(f"the connection was not there after {target.patience:g} s")


async def check_server(target: Target, dialect: str) -> None:
    """Raise ``WrongServer`` naming what the server speaks instead, ``ConnectionLost`` if it is not there."""
    is_right, first = await speaks(target, dialect)
    if is_right:
        return
    others: set[str] = set()

    async def ask(other: str) -> None:
        if await _is_there(target, other):
            others.add(other)

    # Side by side: a server that says nothing takes the whole patience for each of them.
    async with trio.open_nursery() as nursery:
        for other in TESTED_DIALECTS:
            if other != dialect:
                nursery.start_soon(ask, other)
    if others:
        raise WrongServer(f"the server speaks {' and '.join(sorted(others))}, not {dialect}")
    begin = f"; it said {first[:40].hex(' ')}" if first else " and said nothing"
    raise WrongServer(f"the server took no {read_chapter(dialect).notation.opening} of {dialect}{begin}")


async def speaks(target: Target, dialect: str) -> tuple[bool, bytes]:
    """Return whether the server accepts a SETUP of this dialect and answers a probe, and the first bytes it said.

    Raise ``WrongServer`` for one that answers in a protocol of other transports, and ``ConnectionLost``.
    """
    notation = read_chapter(dialect).notation
    words = [(Word.SEND, "setup"), *([(Word.AGREED, "")] if notation.negotiates else []), (Word.ALIVE, "")]
    steps = tuple(Step(word, rest, "") for word, rest in words)
    async with _connected(target, dialect) as end:
        result = await play(Case("", dialect, "server", "", (), Level.MUST, (), steps), end, target.patience)
        if end.wrong_protocol:
            raise WrongServer(end.wrong_protocol)
        # Two initialize messages of the dialect need not agree.
        is_right = result.outcome in (CaseOutcome.PASS, CaseOutcome.NOT_APPLICABLE)
        return is_right, next((passed.data for passed in end.record if not passed.sent), end.rest)


async def run(cases: Sequence[Case], target: Target) -> list[CaseResult]:
    """Run cases, and return their results in the same order."""
    return await side_by_side(cases, target.at_once, partial(_run_case, target=target))


async def side_by_side(cases: Sequence[Case], at_once: int, play_one: Play) -> list[CaseResult]:
    """Play cases, so many at the same time. Return their results in the same order, with the time that each took."""
    results: dict[str, CaseResult] = {}
    limiter = trio.CapacityLimiter(at_once)

    async def timed(case: Case) -> None:
        async with limiter:
            began = trio.current_time()
            result = attrs.evolve(await play_one(case), seconds=trio.current_time() - began)
        results[case.id] = result

    async with trio.open_nursery() as nursery:
        for case in cases:
            nursery.start_soon(timed, case)
    return [results[case.id] for case in cases]


async def _is_there(target: Target, dialect: str) -> bool:
    """Return whether the server answers in this dialect."""
    try:
        return (await speaks(target, dialect))[0]
    except (ConnectionLost, WrongServer):
        # It has gone, or takes no more connections.
        return False


async def _run_case(case: Case, target: Target) -> CaseResult:
    if (reason := lack(case, target.abilities)) is not None:
        return reason
    try:
        async with _connected(target, case.dialect) as end:
            return await play_over(end, case, target.patience, partial(_connected, target, case.dialect))
    except ConnectionLost as error:
        return CaseResult(case, CaseOutcome.FAIL, f"{UNREACHABLE}: {error}")


def lack(case: Case, abilities: frozenset[str]) -> CaseResult | None:
    """Return the result of a case that does not apply to a peer with these interactions and options, else ``None``."""
    if lacking := [name for name in case.needs if name not in abilities]:
        return CaseResult(case, CaseOutcome.NOT_APPLICABLE, f"the peer has no {' and no '.join(lacking)}")
    if surplus := [name for name in case.lacks if name in abilities]:
        return CaseResult(case, CaseOutcome.NOT_APPLICABLE, f"the peer has {' and '.join(surplus)}")
    return None


async def play_over(end: WireEnd, case: Case, patience: float, more: More) -> CaseResult:
    """Play a case over a connection, and over others that ``more`` opens, for a limited time."""
    is_long = any(step.word is Word.IN_TURN for step in case.steps)
    longest = max(CASE_TIME, STEPS_OF_TIME * patience) * (IN_TURN if is_long else 1)
    if case.streams_only and end.has_messages:
        return CaseResult(case, CaseOutcome.NOT_APPLICABLE, "it is about byte streams")
    if case.messages_only and not end.has_messages:
        return CaseResult(case, CaseOutcome.NOT_APPLICABLE, "it is about transports with messages")
    with trio.move_on_after(longest):
        async with AsyncExitStack() as stack:

            async def connect() -> WireEnd:
                return await stack.enter_async_context(more())

            return await play(case, end, patience, connect)
    return CaseResult(case, broken(case), f"not over after {longest:g} s", record=tuple(end.record))
