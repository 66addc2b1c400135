"""Runs cases against a client: the tester listens, and the client under test connects once for each case."""

from __future__ import annotations

import math
import os
import signal
import ssl
import subprocess
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from typing import Final, TypeAlias, TypeVar

import attrs
import trio

from rsocket_trio.conformance.catalogue import ASKS, Case, chapters
from rsocket_trio.conformance.notation import ANYTHING, Notation
from rsocket_trio.conformance.play import RESUME, Failure, Outcome, Result
from rsocket_trio.conformance.run import (
    CASE_TIME,
    MORE_PATIENCE,
    PATIENCE,
    More,
    lack,
    play_over,
    played_again,
    side_by_side,
    time_of,
)
from rsocket_trio.conformance.wire import Ended, WireEnd
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
QUIET = 1.0
"""Seconds of silence after its SETUP that tell that a client asks nothing."""
LAST_WORDS = 0.5
"""Seconds for what a client that ended has said and done, and what was not read yet."""
OUTPUT_KEPT = 4096
"""Bytes of a client's output that are kept, the last ones."""
REJECTED_RESUME: Final = 4
"""The code of an ERROR for a client that comes back to a case that is over."""
FIRST_REQUESTS: Final = {
    "request": ("ask", b"q"),
    "stream": ("stream", b"s"),
    "subscription": ("sub", b"s"),
    "channel": ("channel", b"c"),
}
"""The template and the data of the request that a client makes which was told to ask so."""

T = TypeVar("T")
Start: TypeAlias = Callable[[str, str, str, Sequence[str]], AbstractAsyncContextManager[Callable[[], Awaitable[str]]]]
"""Starts a client, given the URI to connect to, the dialect, what it asks, and the names of ``OPTIONS`` that it takes
part in. It runs for as long as the block. The block gets a function that waits for its end, and returns how it ended.
Raise ``WrongClient``."""


class WrongClient(Exception):
    """The client does not come, or does not speak what is tested."""

    timed_out = False


class LateClient(WrongClient):
    """The client runs, and has not connected in time."""

    timed_out = True


@attrs.frozen
class Listening:
    """The tester's side of a run against a client: where it listens, and how the client is started.

    Without ``start`` the tester waits for clients that somebody else starts. ``wait`` are the seconds in which one has
    to connect. With ``at_once`` above 1 each client needs an address of its own, as with port 0.
    """

    uri: str
    start: Start | None
    abilities: frozenset[str]
    patience: float = PATIENCE
    at_once: int = 1
    wait: float = WAIT
    ssl_context: ssl.SSLContext | None = None
    again: int = 0
    """Further plays of a case that ran out of time, with more patience; none of clients that somebody else starts."""
    case_time: float = CASE_TIME
    """Seconds after which a case ends."""

    def more_patient(self) -> Listening:
        """Return the same, with more time for everything but to connect."""
        return attrs.evolve(self, patience=self.patience * MORE_PATIENCE, case_time=self.case_time * MORE_PATIENCE)


async def run_clients(
    cases: Sequence[Case], listening: Listening, told: Callable[[str], object] = lambda line: None
) -> list[Result]:
    """Run cases of one dialect against a client. Return their results in the same order.

    ``told`` hears where the tester listens and what it waits for, if it does not start the client. Raise
    ``WrongClient`` for a client that does not come, and ``OSError`` if the address can't be had.
    """
    results = {case.id: result for case in cases if (result := lack(case, listening.abilities)) is not None}
    left = [case for case in cases if case.id not in results]
    if left and listening.start is None:
        found = await _wait_for_clients(left, listening, told)
    elif left:
        await check_client(listening, left[0].dialect)
        found = await start_clients(left, listening)
    else:
        found = []
    results.update((result.case.id, result) for result in found)
    return [results[case.id] for case in cases]


async def check_client(listening: Listening, dialect: str) -> None:
    """Start the client once. Raise ``WrongClient`` naming what it does instead of connecting with a SETUP."""

    async def look(end: WireEnd, more: More) -> str:
        return await _fault(end, dialect, listening.patience)

    fault = await _visit(listening, dialect, "nothing", (), look)
    if fault:
        raise WrongClient(fault)


async def _fault(end: WireEnd, dialect: str, patience: float) -> str:
    """Return the fault of a client's first frame, empty for a SETUP of the dialect, which is pushed back."""
    notation = chapters()[dialect].notation
    if notation.frame("client_setup").fits(notation.cleared(await _first(end, patience))):
        return ""
    if protocol := client_protocol(end.first):
        return f"the client speaks {protocol}, not plain {dialect}"
    for other in (chapter.notation for name, chapter in chapters().items() if name != dialect):
        if other.frame("client_setup").fits(end.first_as(other)):
            return f"the client speaks {other.dialect}, not {dialect}"
    said = f"; it said {end.first[:40].hex(' ')}" if end.first else " and said nothing"
    return f"the client connected and sent no {notation.opening} of {dialect}{said}"


# A client that the tester starts


async def start_clients(cases: Sequence[Case], listening: Listening) -> list[Result]:
    """Start a client for each case, without a look at what it speaks. Return the results in the same order."""
    results = await side_by_side(cases, listening.at_once, partial(_start_client, listening=listening))
    patient = partial(_start_client, listening=listening.more_patient())
    return await played_again(results, listening.again, listening.at_once, patient)


async def _start_client(case: Case, listening: Listening) -> Result:
    async def visit(end: WireEnd, more: More) -> Result:
        return await play_over(end, case, listening.patience, more, listening.case_time)

    try:
        return await _visit(listening, case.dialect, case.asks, case.options, visit)
    except WrongClient as error:
        return Result(case, Outcome.FAIL, str(error), timed_out=error.timed_out)


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
    assert listening.start is not None
    [listener] = await open_listeners([listening.uri], ssl_context=listening.ssl_context)
    connected, news, done = trio.Event(), trio.Event(), trio.Event()
    results: list[T] = []
    comes, more = _returns()
    fault: WrongClient = LateClient(f"no client connected to {listener.uri} in {listening.wait:g} s")

    async def take(accepted: Accepted) -> None:
        nonlocal fault
        try:
            async with accepted.open() as transport:
                end = WireEnd(transport, chapters()[dialect].notation)
                if connected.is_set():
                    if RESUME in options:
                        await comes(end)
                        await done.wait()
                    return
                connected.set()
                news.set()
                results.append(await visit(end, more))
        except HandshakeFailed as error:
            if not news.is_set():
                fault = WrongClient(f"the client does not speak {listening.uri.partition(':')[0]}: {error}")
                news.set()
            return
        done.set()

    async def watch(end_of: Callable[[], Awaitable[str]]) -> None:
        nonlocal fault
        how = await end_of()
        with trio.move_on_after(LAST_WORDS):
            # It may have connected just before it ended.
            await news.wait()
        if news.is_set():
            return
        fault = WrongClient(f"the client ended before it connected: {how}")
        news.set()

    async with trio.open_nursery() as nursery:
        await nursery.start(partial(listener.serve, take))
        try:
            async with listening.start(listener.uri, dialect, asks, options) as end_of:
                nursery.start_soon(watch, end_of)
                with trio.move_on_after(listening.wait):
                    await news.wait()
                if connected.is_set():
                    await done.wait()
        except WrongClient as error:
            fault = error
        nursery.cancel_scope.cancel()
    if not results:
        raise fault
    return results[0]


def _returns() -> tuple[Callable[[WireEnd], Awaitable[None]], More]:
    """Return where connections of a client that comes back are put, and what waits for the next one."""
    put, take = trio.open_memory_channel[WireEnd](math.inf)

    @asynccontextmanager
    async def more() -> AsyncIterator[WireEnd]:
        end = None
        with trio.move_on_after(RETURN):
            end = await take.receive()
        if end is None:
            raise Failure(f"the client did not connect again in {RETURN:g} s", timed_out=True)
        yield end

    return put.send, more


def command(arguments: Sequence[str]) -> Start:
    """Return what starts a client by a command, with ``RSOCKET_URI`` and its like set.

    It is ended with everything that it has started, as a process group of its own.
    """

    @asynccontextmanager
    async def start(
        uri: str, dialect: str, asks: str, options: Sequence[str]
    ) -> AsyncIterator[Callable[[], Awaitable[str]]]:
        told = {
            "RSOCKET_URI": uri,
            "RSOCKET_DIALECT": dialect,
            "RSOCKET_ASKS": asks,
            "RSOCKET_WITH": ",".join(options),
        }
        try:
            process = await trio.lowlevel.open_process(
                list(arguments),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**os.environ, **told},
                start_new_session=True,
            )
        except OSError as error:
            raise WrongClient(f"{arguments[0]}: {error.strerror}") from None
        try:
            async with trio.open_nursery() as nursery:
                said = bytearray()
                read = trio.Event()
                nursery.start_soon(_keep_output, process, said, read)
                yield partial(_end_of, process, said, read)
                nursery.cancel_scope.cancel()
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            with trio.CancelScope(shield=True):
                await process.wait()

    return start


async def _keep_output(process: trio.Process, said: bytearray, read: trio.Event) -> None:
    """Read what the process says, so that it never waits for a reader."""
    assert process.stdout is not None
    async with process.stdout:
        async for chunk in process.stdout:
            said += chunk
            del said[:-OUTPUT_KEPT]
    read.set()


async def _end_of(process: trio.Process, said: bytearray, read: trio.Event) -> str:
    """Wait for the end of the process. Return its exit code and the last line that it said."""
    code = await process.wait()
    with trio.move_on_after(LAST_WORDS):
        await read.wait()
    lines = [line for line in bytes(said).decode("utf-8", "replace").splitlines() if line.strip()]
    how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
    return f"{how}, {readable(lines[-1].strip())}" if lines else how


# Clients that somebody else starts


async def _wait_for_clients(cases: Sequence[Case], listening: Listening, told: Callable[[str], object]) -> list[Result]:
    dialect = cases[0].dialect
    notation = chapters()[dialect].notation
    kinds = [(asks, resumes) for asks in ASKS for resumes in (False, True)]
    waiting = {kind: deque(case for case in cases if _kind(case) == kind) for kind in kinds}
    resuming: dict[bytes, tuple[Callable[[WireEnd], Awaitable[None]], trio.Event]] = {}
    results: list[Result] = []
    playing = 0
    wrong = ""
    [listener] = await open_listeners([listening.uri], ssl_context=listening.ssl_context)
    async with trio.open_nursery() as nursery:

        def rest() -> None:
            """Wait for the next client for a bounded time, unless one is there."""
            longest = max(time_of(case, listening.case_time) for case in cases)
            nursery.cancel_scope.deadline = trio.current_time() + (2 * longest if playing else listening.wait)
            if len(results) == len(cases):
                nursery.cancel_scope.cancel()

        async def take(accepted: Accepted) -> None:
            nonlocal playing
            playing += 1
            rest()
            try:
                async with accepted.open() as transport:
                    await serve_client(WireEnd(transport, notation))
            finally:
                playing -= 1
                rest()

        async def serve_client(end: WireEnd) -> None:
            """Serve a case to a client, or hand its connection to the case that it comes back to."""
            nonlocal wrong
            first = notation.cleared(await _first(end, listening.patience))
            token = notation.token_in(first)
            if "client_resume" in notation.templates and _is_like(notation, "client_resume", first):
                if token in resuming:
                    comes, done = resuming[token]
                    await comes(end)
                    await done.wait()
                else:
                    await end.send(notation.templates["failure"].fill([REJECTED_RESUME]).value)
                return
            fault = await _fault(end, dialect, listening.patience)
            if fault and not results:
                wrong = fault
                nursery.cancel_scope.cancel()
            kind = ("nothing", False) if fault else (await _asked(end, notation), token is not None)
            comes, more = _returns()
            done = trio.Event()
            if token is not None:
                resuming[token] = comes, done
            while waiting[kind]:
                began = trio.current_time()
                result = await play_over(end, waiting[kind].popleft(), listening.patience, more)
                result = attrs.evolve(result, seconds=trio.current_time() - began)
                results.append(result)
                if result.outcome is not Outcome.NOT_APPLICABLE or result.record:
                    break
            done.set()
            if token is not None:
                del resuming[token]

        await nursery.start(partial(listener.serve, take))
        told(f"listening {listener.uri}")
        needed = Counter(_kind(case) for case in cases)
        named = [f"{needed[kind]} that ask {kind[0]}{' and resume' * kind[1]}" for kind in kinds if needed[kind]]
        told(f"waiting for clients: {', '.join(named)}")
        rest()
    if wrong:
        raise WrongClient(wrong)
    if not results:
        raise WrongClient(f"no client connected to {listener.uri} in {listening.wait:g} s")
    ran = {result.case.id for result in results}
    missed = [case for case in cases if case.id not in ran]
    return results + [Result(case, Outcome.NOT_APPLICABLE, f"no client came that asks {case.asks}") for case in missed]


def _kind(case: Case) -> tuple[str, bool]:
    """Return what tells the clients apart that can serve for a case: the request, and whether they can resume."""
    return case.asks, RESUME in case.options


async def _first(end: WireEnd, patience: float) -> bytes:
    """Return the first frame of a client, empty if none comes, and push it back."""
    frames: list[bytes] = []
    with trio.move_on_after(patience), suppress(Ended):
        frames.append(await end.receive())
    end.push_back(frames)
    return b"".join(frames)


def _is_like(notation: Notation, name: str, frame: bytes) -> bool:
    """Return whether this is a frame of the template, whatever its fields are."""
    template = notation.templates[name]
    return template.fill([ANYTHING] * len(template.fields)).fits(frame)


async def _asked(end: WireEnd, notation: Notation) -> str:
    """Return what a client asks, by its first request. What it sent is pushed back for its case."""
    frames: list[bytes] = []
    found = "nothing"
    with trio.move_on_after(QUIET), suppress(Ended):
        while found == "nothing":
            frames.append(await end.receive())
            found = _request_in(notation.cleared(frames[-1]), notation)
    end.push_back(frames)
    return found


def _request_in(frame: bytes, notation: Notation) -> str:
    for asks, (name, data) in FIRST_REQUESTS.items():
        template = notation.templates.get(f"asked_{name}") or notation.templates.get(name)
        if template is None:
            continue
        pattern = template.fill([data if field == "data" else ANYTHING for field in template.fields])
        if pattern.fits(frame):
            return asks
    return "nothing"
