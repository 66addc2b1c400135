"""``python -m qa.restarts_backlog [SCENE ...]``: clients that connect while a server stops or replaces workers.

A server that stops answers all that it accepted, and accepts all that waits: of 1,000 requests at most 2 end as
``ConnectionLost``, and those say that no frame ever came. Where workers are replaced none does.
"""

from __future__ import annotations

import random
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import attrs
import trio

from qa.processes import end_of, serve_command
from rsocket_trio import ConnectionClosed, ConnectionLost, Payload, Rejected, Responder, open_connection

CLIENTS = 2000
"""Clients of a scene, all signals together."""
STOPS = 20
HANGUPS = 5
BURST_SECONDS = 0.3
"""Seconds within which the clients of one SIGTERM connect; it comes at any time of these."""
AT_ONCE = 16
"""Clients at a time that connect, ask and go, while workers are replaced."""
GRACE = 2.0
PATIENCE = 60.0
"""Seconds after which a scene has failed."""
MAX_LOST_PER_1000 = 2

SERVED = "qa.restarts_backlog:responder"
NO_FRAME = "no frame ever came"
ANSWERED, REJECTED, REFUSED, LOST = "answered", "Rejected or Drained", "refused", "ConnectionLost"

responder = Responder()


@responder.request_response
def echo(request: Payload) -> bytes:
    """Answer at once."""
    return request.data


@attrs.define
class Outcomes:
    """The numbers of requests of a scene, by their end."""

    counts: Counter[str] = attrs.field(factory=Counter)
    texts: Counter[str] = attrs.field(factory=Counter)
    """The texts of all ``ConnectionLost``."""

    @property
    def requests(self) -> int:
        """The requests of all clients to whom somebody listened."""
        return self.counts.total() - self.counts[REFUSED]


@attrs.frozen
class Scene:
    """A scene: what is served, what the server is told, and how many requests of 1,000 may be lost."""

    name: str
    uri: str
    play: Callable[[str, Outcomes], Awaitable[None]]
    max_lost_per_1000: int

    def run(self) -> bool:
        """Play it, and print the outcome. Return whether it keeps to its bar."""
        outcomes = Outcomes()
        trio.run(self.play, self.uri, outcomes)
        lost, requests = outcomes.counts[LOST], outcomes.requests
        silent = sum(number for text, number in outcomes.texts.items() if NO_FRAME in text)
        kept = 1000 * lost <= self.max_lost_per_1000 * requests and silent == lost and outcomes.counts[ANSWERED] > 0
        counts = ", ".join(f"{number} {outcome}" for outcome, number in sorted(outcomes.counts.items()))
        print(f"{'ok  ' if kept else 'FAIL'} {self.name}: {lost} of {requests} requests lost ({counts})", flush=True)
        for text, number in outcomes.texts.most_common():
            print(f"       {number} times: {text}", flush=True)
        return kept


@asynccontextmanager
async def server(uri: str, *options: str) -> AsyncIterator[tuple[trio.Process, str]]:
    """Serve by the command line. Yield the process, and the URI at which it listens."""
    process, bound = await serve_command(SERVED, uri, "--grace", str(GRACE), *options)
    try:
        yield process, bound
    finally:
        with trio.CancelScope(shield=True):
            process.send_signal(signal.SIGTERM)
            with trio.move_on_after(PATIENCE):
                await process.wait()
            process.kill()
            await end_of(process)


async def ask(uri: str, outcomes: Outcomes) -> None:
    """Connect, ask once, and note how that ended."""
    outcome = ANSWERED
    try:
        async with open_connection(uri) as connection:
            await connection.request_response(b"x")
    except (Rejected, ConnectionClosed):
        outcome = REJECTED
    except ConnectionLost as error:
        outcome = REFUSED if isinstance(error.__cause__, ConnectionRefusedError | FileNotFoundError) else LOST
        if outcome is LOST:
            outcomes.texts[str(error).removeprefix(f"{uri}: ")] += 1
    outcomes.counts[outcome] += 1


async def stop_again_and_again(uri: str, outcomes: Outcomes, *, options: tuple[str, ...] = ()) -> None:
    """Send SIGTERM to one server after the other, each while clients connect."""
    chance = random.Random(0)

    async def come(bound: str) -> None:
        await trio.sleep(chance.uniform(0, BURST_SECONDS))
        await ask(bound, outcomes)

    for _ in range(STOPS):
        with trio.fail_after(PATIENCE):
            async with server(uri, *options) as (process, bound), trio.open_nursery() as nursery:
                for _ in range(CLIENTS // STOPS):
                    nursery.start_soon(come, bound)
                await trio.sleep(chance.uniform(0, BURST_SECONDS))
                process.send_signal(signal.SIGTERM)


async def replace_workers(uri: str, outcomes: Outcomes) -> None:
    """Send SIGHUP again and again, while clients connect, ask and go."""
    enough = trio.Event()

    async def keep_asking(bound: str) -> None:
        while not enough.is_set():
            await ask(bound, outcomes)
            await trio.sleep(0.01)

    with trio.fail_after(PATIENCE):
        async with server(uri, "--workers", "2") as (process, bound), trio.open_nursery() as nursery:
            for _ in range(AT_ONCE):
                nursery.start_soon(keep_asking, bound)
            for number in range(1, HANGUPS + 1):
                process.send_signal(signal.SIGHUP)
                while outcomes.counts.total() < number * CLIENTS // HANGUPS:  # noqa: ASYNC110
                    await trio.sleep(0.01)
            enough.set()


def scenes(directory: str) -> list[Scene]:
    """Return all scenes; a Unix socket is made in the directory."""
    stop, stop_workers = stop_again_and_again, partial(stop_again_and_again, options=("--workers", "2"))
    return [
        Scene("tcp, SIGTERM", "tcp://127.0.0.1:0", stop, MAX_LOST_PER_1000),
        Scene("ws, SIGTERM", "ws://127.0.0.1:0/rsocket", stop, MAX_LOST_PER_1000),
        Scene("h2, SIGTERM", "h2://127.0.0.1:0/rsocket", stop, MAX_LOST_PER_1000),
        Scene("unix, SIGTERM", f"unix://{directory}/socket", stop, MAX_LOST_PER_1000),
        Scene("tcp of 2 workers, SIGTERM", "tcp://127.0.0.1:0", stop_workers, MAX_LOST_PER_1000),
        Scene("tcp of 2 workers, SIGHUP", "tcp://127.0.0.1:0", replace_workers, 0),
        Scene("ws of 2 workers, SIGHUP", "ws://127.0.0.1:0/rsocket", replace_workers, 0),
        Scene("h2 of 2 workers, SIGHUP", "h2://127.0.0.1:0/rsocket", replace_workers, 0),
    ]


def main(wanted: list[str]) -> int:
    """Play the scenes whose names begin with one of these, or all. Return the exit code."""
    with tempfile.TemporaryDirectory() as directory:
        chosen = [scene for scene in scenes(directory) if not wanted or scene.name.startswith(tuple(wanted))]
        outcomes = [scene.run() for scene in chosen]
    return 0 if outcomes and all(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
