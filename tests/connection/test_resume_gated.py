"""A session that loses its client before the application let it in: what it holds and what becomes of it count."""

from __future__ import annotations

from typing import Any

import trio

from rsocket_trio.server.session_registry import STREAM
from tests.conformance.raw import RS10, Log, ask
from tests.conformance.resuming import begin, cut, expect_refused, resume, resume_ok, server, with_options
from tests.connection.pairs import settle
from tests.each_row import each_row

BOUND = 5 * STREAM


@each_row("held", [BOUND // 2, BOUND + 1])
async def test_what_is_held_for_it_counts_while_it_waits(autojump_clock: object, held: int) -> None:
    log = Log()
    log.responder.setup(never)
    async with server(RS10, log.responder, with_options(sessions_bytes=BOUND), grace=0) as harbour:
        peer = await begin(harbour, RS10)
        await peer.send(ask(1, bytes(held)))
        await settle()
        await cut(peer)
        if held > BOUND:
            await expect_refused(harbour, resume(RS10))
        else:
            back = await harbour.peer()
            await back.send(resume(RS10))
            await back.expect(resume_ok(len(ask(1, bytes(held)))))


@each_row("requests", [4, 6])
async def test_the_streams_that_begin_when_it_is_let_in_count_at_once(autojump_clock: object, requests: int) -> None:
    log = Log()
    log.responder.setup(later)
    async with server(RS10, log.responder, with_options(sessions_bytes=BOUND), grace=0) as harbour:
        peer = await begin(harbour, RS10)
        await peer.send(*[ask(2 * number + 1, b"wait") for number in range(requests)])
        await settle()
        await cut(peer)
        await trio.sleep(10)
        running = log.seen.count(("request", b"wait", None)) - log.seen.count("cancelled")
        assert running == (0 if requests * STREAM > BOUND else requests)


async def never(terms: Any, connection: Any) -> None:
    """The application never makes up its mind."""
    await trio.sleep_forever()


async def later(terms: Any, connection: Any) -> None:
    """The application takes some time."""
    await trio.sleep(5)
