"""Runs cases against a server or a client, several at a time, after a look at whether it is one.

A server gets a connection for each case. A client is started for each: the tester listens.
"""

from __future__ import annotations

import math
import os
import signal
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from tempfile import TemporaryFile
from typing import IO, TypeAlias

import attrs
import trio

from rsocket_trio.conformance.catalogue import TESTED_DIALECTS, Case, Level, Word, read_chapter, steps_of
from rsocket_trio.conformance.play import CaseOutcome, CaseResult, broken, play
from rsocket_trio.conformance.wire import Ended, StepFailure, WireEnd
from rsocket_trio.errors import ConnectionLost, readable
from rsocket_trio.limits import Limits
from rsocket_trio.transports.base import Transport
from rsocket_trio.transports.connect import HeadersLike, open_transport
from rsocket_trio.transports.error_text import HandshakeFailed
from rsocket_trio.transports.first_bytes import client_protocol
from rsocket_trio.transports.listen import Accepted, open_listeners

AT_ONCE = 16
"""Cases that run at the same time, each over a connection of its own."""
STEP_TIMEOUT = 5.0
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


class WrongPeer(Exception):
    """The peer does not come, or does not speak what is tested."""


@attrs.frozen
class Target:
    """The server under test: how to reach it, and the interactions and options that it has."""

    dial: Dial
    abilities: frozenset[str]
    patience: float = STEP_TIMEOUT
    at_once: int = AT_ONCE


def dial_to(uri: str, ssl_context: ssl.SSLContext | None = None, headers: HeadersLike = ()) -> Dial:
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
    """Raise ``WrongPeer`` naming what the server speaks instead, ``ConnectionLost`` if it is not there."""
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
        raise WrongPeer(f"the server speaks {' and '.join(sorted(others))}, not {dialect}")
    begin = f"; it said {first[:40].hex(' ')}" if first else " and said nothing"
    raise WrongPeer(f"the server took no {read_chapter(dialect).notation.opening} of {dialect}{begin}")


async def speaks(target: Target, dialect: str) -> tuple[bool, bytes]:
    """Return whether the server accepts a SETUP of this dialect and answers a probe, and the first bytes it said.

    Raise ``WrongPeer`` for one that answers in a protocol of other transports, and ``ConnectionLost``.
    """
    notation = read_chapter(dialect).notation
    steps = tuple(steps_of("> setup\nagreed\nalive" if notation.negotiates else "> setup\nalive", {}))
    async with _connected(target, dialect) as end:
        result = await play(Case("", dialect, "server", "", (), Level.MUST, (), steps), end, target.patience)
        if end.wrong_protocol:
            raise WrongPeer(end.wrong_protocol)
        # Two initialize messages of the dialect need not agree.
        is_right = result.outcome in (CaseOutcome.PASS, CaseOutcome.NOT_APPLICABLE)
        return is_right, next((passed.data for passed in end.record if not passed.sent), end.rest)


async def run(cases: Sequence[Case], target: Target) -> list[CaseResult]:
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
    try:
        return (await speaks(target, dialect))[0]
    except (ConnectionLost, WrongPeer):
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


CLIENTS_AT_ONCE = 4
"""Clients that are started at the same time, where each has a port of its own."""
WAIT = 30.0
"""Seconds in which a client has to connect."""
RETURN = 20.0
"""Seconds in which a client that resumes has to connect again."""
LAST_WORDS = 0.5
"""Seconds in which the connection is seen of a client that ended."""
OUTPUT_KEPT = 4096
"""Bytes at the end of a client's output in which its last line is looked for."""

Start: TypeAlias = Callable[[str, str, str, Sequence[str]], AbstractAsyncContextManager[Callable[[], Awaitable[str]]]]
"""Starts a client, given the URI to connect to, the dialect, what it asks, and the names of ``OPTIONS`` that it takes
part in. It runs for as long as the block. The block gets a function that waits for its end, and returns how it ended.
Raise ``WrongPeer``."""


@attrs.frozen
class Listening:
    """The tester's side of a run against a client: where it listens, and how the client is started.

    ``wait`` are the seconds in which a client has to connect. With ``at_once`` above 1 each needs an address of its
    own, as with port 0.
    """

    uri: str
    start: Start
    abilities: frozenset[str]
    patience: float = STEP_TIMEOUT
    at_once: int = 1
    wait: float = WAIT
    ssl_context: ssl.SSLContext | None = None


async def run_clients(cases: Sequence[Case], listening: Listening) -> list[CaseResult]:
    """Run cases of one dialect against a client. Return their results in the same order.

    Raise ``WrongPeer`` for a client that does not come, and ``OSError`` if the address can't be had.
    """
    if any(lack(case, listening.abilities) is None for case in cases):
        await check_client(listening, cases[0].dialect)
    return await start_clients(cases, listening)


async def check_client(listening: Listening, dialect: str) -> None:
    """Start the client once. Raise ``WrongPeer`` naming what it does instead of connecting with a SETUP."""
    notation = read_chapter(dialect).notation
    async with _visited(listening, dialect, "nothing", ()) as (end, _):
        frame = b""
        with trio.move_on_after(listening.patience), suppress(Ended):
            frame = await end.receive()
        if not notation.frame("client_setup").fits(notation.headers.cleared(frame)):
            if protocol := client_protocol(end.first):
                raise WrongPeer(f"the client speaks {protocol}, not plain {dialect}")
            begin = f"; it said {end.first[:40].hex(' ')}" if end.first else " and said nothing"
            raise WrongPeer(f"the client connected and sent no {notation.opening} of {dialect}{begin}")


async def start_clients(cases: Sequence[Case], listening: Listening) -> list[CaseResult]:
    """Start a client for each case, without a look at what it speaks. Return the results in the same order."""
    return await side_by_side(cases, listening.at_once, partial(_start_client, listening=listening))


async def _start_client(case: Case, listening: Listening) -> CaseResult:
    if (reason := lack(case, listening.abilities)) is not None:
        return reason

    try:
        async with _visited(listening, case.dialect, case.asks, case.options) as (end, more):
            result = await play_over(end, case, listening.patience, more)
    except WrongPeer as error:
        return CaseResult(case, CaseOutcome.FAIL, str(error))
    return result


@asynccontextmanager
async def _visited(
    listening: Listening, dialect: str, asks: str, options: Sequence[str]
) -> AsyncIterator[tuple[WireEnd, More]]:
    """Start the client, and end it with the block. Yield its first connection, and what waits for more if it resumes.

    Other connections are closed. The address is bound anew each time, so that a connection that an earlier client left
    there does not count. Raise ``WrongPeer`` if none comes.
    """
    [listener] = await open_listeners([listening.uri], ssl_context=listening.ssl_context)
    arrive, arrivals = trio.open_memory_channel[WireEnd | WrongPeer](math.inf)
    has_come, is_over = False, trio.Event()

    async def take(accepted: Accepted) -> None:
        nonlocal has_come
        try:
            async with accepted.open() as transport:
                if not has_come or "resume" in options:
                    has_come = True
                    await arrive.send(WireEnd(transport, read_chapter(dialect).notation))
                    await is_over.wait()
        except HandshakeFailed as error:
            if not has_come:
                scheme = listening.uri.partition(":")[0]
                await arrive.send(WrongPeer(f"the client does not speak {scheme}: {error}"))

    async def watch(end_of: Callable[[], Awaitable[str]]) -> None:
        how = await end_of()
        # It may have connected just before it ended.
        await trio.sleep(LAST_WORDS)
        if not has_come:
            await arrive.send(WrongPeer(f"the client ended before it connected: {how}"))

    @asynccontextmanager
    async def more() -> AsyncIterator[WireEnd]:
        end = None
        with trio.move_on_after(RETURN):
            end = await arrivals.receive()
        if not isinstance(end, WireEnd):
            raise StepFailure(f"the client did not connect again in {RETURN:g} s")
        yield end

    async with trio.open_nursery() as nursery:
        await nursery.start(partial(listener.serve, take))
        first: WireEnd | WrongPeer = WrongPeer(f"no client connected to {listener.uri} in {listening.wait:g} s")
        try:
            async with listening.start(listener.uri, dialect, asks, options) as end_of:
                nursery.start_soon(watch, end_of)
                with trio.move_on_after(listening.wait):
                    first = await arrivals.receive()
                if isinstance(first, WireEnd):
                    # The client runs until its case is over: its process ends with this block, and the connections
                    # that it has made are closed once ``is_over`` lets their tasks go.
                    yield first, more
                    is_over.set()
        except WrongPeer as error:
            first = error
        nursery.cancel_scope.cancel()
    if isinstance(first, WrongPeer):
        raise first


def command(arguments: Sequence[str]) -> Start:
    """Return what starts a client by a command, with ``RSOCKET_URI`` and its like set.

    It is ended with everything that it has started, as a process group of its own.
    """

    @asynccontextmanager
    async def start(
        uri: str, dialect: str, asks: str, options: Sequence[str]
    ) -> AsyncIterator[Callable[[], Awaitable[str]]]:
        variables = {
            "RSOCKET_URI": uri,
            "RSOCKET_DIALECT": dialect,
            "RSOCKET_ASKS": asks,
            "RSOCKET_WITH": ",".join(options),
        }
        with TemporaryFile() as output:
            try:
                process = await trio.lowlevel.open_process(
                    list(arguments),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **variables},
                    start_new_session=True,
                )
            except OSError as error:
                raise WrongPeer(f"{arguments[0]}: {error.strerror}") from None
            try:
                yield partial(_end_of, process, output)
            finally:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
                with trio.CancelScope(shield=True):
                    await process.wait()

    return start


async def _end_of(process: trio.Process, output: IO[bytes]) -> str:
    """Wait for the end of the process. Return its exit code and the last line of its output."""
    code = await process.wait()
    output.seek(-min(OUTPUT_KEPT, output.seek(0, os.SEEK_END)), os.SEEK_END)
    lines = [line for line in output.read().decode("utf-8", "replace").splitlines() if line.strip()]
    how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
    return f"{how}, {readable(lines[-1].strip())}" if lines else how
