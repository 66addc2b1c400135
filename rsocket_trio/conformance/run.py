"""Runs cases against a server, a connection each and several at a time, after a look at whether it is one."""

from __future__ import annotations

import math
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
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
from rsocket_trio.transports.schemes import parse_uri

AT_ONCE = 16
"""Cases that run at the same time, each over a connection of its own."""
PATIENCE = 5.0
"""Seconds in which the peer has to do what a step expects."""
CASE_TIME = 60.0
"""Seconds after which a case ends whatever it waits for."""
IN_TURN_TIME = 300.0
"""The same for a case in which hundreds of requests wait for each other."""
GREETING = ((Word.SEND, "setup"), (Word.AGREED, ""), (Word.ALIVE, ""))
"""The steps that a server must pass to count as one of a dialect with initialize messages."""
TLS_ALERT = b"\x15\x03"
UNREACHABLE = "the server can't be reached any more"
"""Begins the reason of a case for which no connection could be opened."""

Dial: TypeAlias = Callable[[], AbstractAsyncContextManager[Transport]]
More: TypeAlias = Callable[[], AbstractAsyncContextManager[WireEnd]]
"""Opens another connection of a case, or waits for it. Raise ``Failure`` if a client does not come."""


class WrongServer(Exception):
    """The server is there, and does not speak what is tested."""


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


def dial_to(uri: str, ssl_context: ssl.SSLContext | None = None, headers: HeadersLike = ()) -> Dial:
    """Return what opens a transport to a server."""
    return partial(open_transport, uri, ssl_context=ssl_context, headers=headers, limits=Limits())


@asynccontextmanager
async def _connected(target: Target) -> AsyncIterator[Transport]:
    """Open a transport for the block. Raise ``ConnectionLost``, also where the handshakes take too long."""
    seconds = target.patience if target.connect_timeout is None else target.connect_timeout
    with trio.move_on_after(seconds) as scope:
        async with target.dial() as transport:
            scope.deadline = math.inf
            yield transport
    if scope.cancelled_caught:
        raise ConnectionLost(f"the connection was not there after {seconds:g} s")


def _end(target: Target, transport: Transport, dialect: str) -> WireEnd:
    """Return the tester's end of a connection."""
    notation = chapters()[dialect].notation
    if target.routes is None or dialect != DIALECT:
        return WireEnd(transport, notation)
    written = partial(target.routes.written, setup=notation.frame("setup").value)
    return WireEnd(transport, notation, written, secret=target.routes.secret)


async def speaks_tls(uri: str, patience: float = PATIENCE) -> bool:
    """Return whether the server at a URI without TLS begins with TLS all the same."""
    endpoint = parse_uri(uri)
    if endpoint.uses_tls or not endpoint.port:
        return False
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
    with trio.move_on_after(patience):
        try:
            async with dial_to(f"tls://{host}:{endpoint.port}", context)():
                return True
        except ConnectionLost:
            pass
    return False


async def check_server(target: Target, dialect: str) -> None:
    """Raise ``WrongServer`` naming what the server speaks instead, ``ConnectionLost`` if it is not there."""
    found, first = await _speaks(target, dialect)
    if found:
        return
    if first.startswith(TLS_ALERT):
        raise WrongServer(f"the server speaks TLS, not plain {dialect}")
    others: set[str] = set()

    async def ask(other: str) -> None:
        try:
            if (await _speaks(target, other))[0]:
                others.add(other)
        except ConnectionLost:
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


async def _speaks(target: Target, dialect: str) -> tuple[bool, bytes]:
    """Return whether the server accepts a SETUP of this dialect and answers a probe, and the first bytes it said."""
    chapter = chapters()[dialect]
    async with _connected(target) as transport:
        end = _end(target, transport, dialect)
        if chapter.notation.negotiates:
            steps = tuple(Step(word, rest, "") for word, rest in GREETING)
            result = await play(Case("", dialect, "server", "", (), Level.MUST, (), steps), end, target.patience)
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
                frame = ended.rest or frame
            except Torn:
                pass
        if answer.fill(arguments).fits(frame):
            return True, b""
        return False, next((one.data for one in end.record if not one.sent), frame) or end.rest


async def run(
    cases: Sequence[Case], target: Target, told: Callable[[Result], object] = lambda result: None
) -> list[Result]:
    """Run cases, and return their results in the same order; ``told`` hears of each as it ends."""
    results: dict[str, Result] = {}
    limiter = trio.CapacityLimiter(target.at_once)

    async def one(case: Case) -> None:
        async with limiter:
            result = await _run_case(case, target)
        results[case.id] = result
        told(result)

    async with trio.open_nursery() as nursery:
        for case in cases:
            nursery.start_soon(one, case)
    return [results[case.id] for case in cases]


async def _run_case(case: Case, target: Target) -> Result:
    if (reason := lack(case, target.abilities)) is not None:
        return reason
    if target.routes and (obstacle := target.routes.obstacle(case, chapters()[case.dialect].notation)):
        return Result(case, Outcome.NOT_APPLICABLE, obstacle)
    # The time of the case itself begins with its connection, and what passed there is told.
    longest = time_of(case) + 2 * max(target.patience, target.connect_timeout or 0.0)
    with trio.move_on_after(longest):
        try:
            async with _connected(target) as transport:
                end = _end(target, transport, case.dialect)
                return await play_over(end, case, target.patience, partial(_another, target, case))
        except ConnectionLost as error:
            return Result(case, Outcome.FAIL, f"{UNREACHABLE}: {error}")
    return Result(case, Outcome.FAIL, f"not over after {longest:g} s")


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


async def play_over(end: WireEnd, case: Case, patience: float, more: More) -> Result:
    """Play a case over a connection, for ``time_of`` it at most, and over others that ``more`` opens."""
    if case.streams_only and end.has_messages:
        return Result(case, Outcome.NOT_APPLICABLE, "it is about byte streams")
    if case.messages_only and not end.has_messages:
        return Result(case, Outcome.NOT_APPLICABLE, "it is about transports with messages")
    with trio.move_on_after(time_of(case)):
        async with AsyncExitStack() as stack:

            async def connect() -> WireEnd:
                return await stack.enter_async_context(more())

            return await play(case, end, patience, connect)
    return Result(case, broken(case), f"not over after {time_of(case):g} s", record=tuple(end.record))


def time_of(case: Case) -> float:
    """Return the seconds after which a case ends. One of many requests in turn may go over a slow line."""
    return IN_TURN_TIME if any(step.word is Word.IN_TURN for step in case.steps) else CASE_TIME
