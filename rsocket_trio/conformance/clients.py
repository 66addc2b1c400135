"""Runs cases against a client: the tester listens, and starts the client under test once for each case."""

from __future__ import annotations

import math
import os
import signal
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from tempfile import TemporaryFile
from typing import IO, TypeAlias, TypeVar

import attrs
import trio

from rsocket_trio.conformance.catalogue import Case, read_chapter
from rsocket_trio.conformance.play import RESUME, CaseOutcome, CaseResult
from rsocket_trio.conformance.run import PATIENCE, More, lack, play_over, side_by_side
from rsocket_trio.conformance.wire import Ended, StepFailure, WireEnd
from rsocket_trio.errors import readable
from rsocket_trio.transports.error_text import HandshakeFailed
from rsocket_trio.transports.first_bytes import client_protocol
from rsocket_trio.transports.listen import Accepted, open_listeners

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

T = TypeVar("T")
Start: TypeAlias = Callable[[str, str, str, Sequence[str]], AbstractAsyncContextManager[Callable[[], Awaitable[str]]]]
"""Starts a client, given the URI to connect to, the dialect, what it asks, and the names of ``OPTIONS`` that it takes
part in. It runs for as long as the block. The block gets a function that waits for its end, and returns how it ended.
Raise ``WrongClient``."""


class WrongClient(Exception):
    """The client does not come, or does not speak what is tested."""


@attrs.frozen
class Listening:
    """The tester's side of a run against a client: where it listens, and how the client is started.

    ``wait`` are the seconds in which a client has to connect. With ``at_once`` above 1 each needs an address of its
    own, as with port 0.
    """

    uri: str
    start: Start
    abilities: frozenset[str]
    patience: float = PATIENCE
    at_once: int = 1
    wait: float = WAIT
    ssl_context: ssl.SSLContext | None = None


async def run_clients(cases: Sequence[Case], listening: Listening) -> list[CaseResult]:
    """Run cases of one dialect against a client. Return their results in the same order.

    Raise ``WrongClient`` for a client that does not come, and ``OSError`` if the address can't be had.
    """
    results = {case.id: result for case in cases if (result := lack(case, listening.abilities)) is not None}
    left = [case for case in cases if case.id not in results]
    if left:
        await check_client(listening, left[0].dialect)
        results.update((result.case.id, result) for result in await start_clients(left, listening))
    return [results[case.id] for case in cases]


async def check_client(listening: Listening, dialect: str) -> None:
    """Start the client once. Raise ``WrongClient`` naming what it does instead of connecting with a SETUP."""
    notation = read_chapter(dialect).notation

    async def fault_of(end: WireEnd, more: More) -> str:
        """Return what is wrong with the client's first frame, empty for a SETUP of the dialect."""
        frame = b""
        with trio.move_on_after(listening.patience), suppress(Ended):
            frame = await end.receive()
        if notation.frame("client_setup").fits(notation.cleared(frame)):
            return ""
        if protocol := client_protocol(end.first):
            return f"the client speaks {protocol}, not plain {dialect}"
        begin = f"; it said {end.first[:40].hex(' ')}" if end.first else " and said nothing"
        return f"the client connected and sent no {notation.opening} of {dialect}{begin}"

    if fault := await _visit(listening, dialect, "nothing", (), fault_of):
        raise WrongClient(fault)


async def start_clients(cases: Sequence[Case], listening: Listening) -> list[CaseResult]:
    """Start a client for each case, without a look at what it speaks. Return the results in the same order."""
    return await side_by_side(cases, listening.at_once, partial(_start_client, listening=listening))


async def _start_client(case: Case, listening: Listening) -> CaseResult:
    async def visit(end: WireEnd, more: More) -> CaseResult:
        return await play_over(end, case, listening.patience, more)

    try:
        return await _visit(listening, case.dialect, case.asks, case.options, visit)
    except WrongClient as error:
        return CaseResult(case, CaseOutcome.FAIL, str(error))


async def _visit(
    listening: Listening,
    dialect: str,
    asks: str,
    options: Sequence[str],
    visit: Callable[[WireEnd, More], Awaitable[T]],
) -> T:
    """Start the client, and end it. Return what ``visit`` makes of its first connection, and of more if it resumes.

    Other connections are closed. The address is bound anew each time, so that a connection that an earlier client left
    there does not count. Raise ``WrongClient`` if none comes.
    """
    [listener] = await open_listeners([listening.uri], ssl_context=listening.ssl_context)
    arrive, arrivals = trio.open_memory_channel[WireEnd | WrongClient](math.inf)
    has_come, is_over = False, trio.Event()

    async def take(accepted: Accepted) -> None:
        nonlocal has_come
        try:
            async with accepted.open() as transport:
                if not has_come or RESUME in options:
                    has_come = True
                    await arrive.send(WireEnd(transport, read_chapter(dialect).notation))
                    await is_over.wait()
        except HandshakeFailed as error:
            if not has_come:
                scheme = listening.uri.partition(":")[0]
                await arrive.send(WrongClient(f"the client does not speak {scheme}: {error}"))

    async def watch(end_of: Callable[[], Awaitable[str]]) -> None:
        how = await end_of()
        # It may have connected just before it ended.
        await trio.sleep(LAST_WORDS)
        if not has_come:
            await arrive.send(WrongClient(f"the client ended before it connected: {how}"))

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
        first: WireEnd | WrongClient = WrongClient(f"no client connected to {listener.uri} in {listening.wait:g} s")
        result: list[T] = []
        try:
            async with listening.start(listener.uri, dialect, asks, options) as end_of:
                nursery.start_soon(watch, end_of)
                with trio.move_on_after(listening.wait):
                    first = await arrivals.receive()
                if isinstance(first, WireEnd):
                    # The client runs until its case is over: its process ends with this block, and the connections
                    # that it has made are closed once ``is_over`` lets their tasks go.
                    result.append(await visit(first, more))
                    is_over.set()
        except WrongClient as error:
            first = error
        nursery.cancel_scope.cancel()
    if isinstance(first, WrongClient):
        raise first
    return result[0]


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
                raise WrongClient(f"{arguments[0]}: {error.strerror}") from None
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
