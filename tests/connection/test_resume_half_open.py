"""A client that comes back before its server missed it: it harms nobody who waits, and nobody is left unanswered."""

from __future__ import annotations

from typing import Any

import trio

from rsocket_trio import Connection, Responder
from tests.conformance.raw import RS10, Log, ask
from tests.conformance.resuming import begin, cut, expect_refused, resume, resume_ok, server, with_options
from tests.connection.pairs import settle


async def test_it_does_not_push_out_a_session_that_waits(autojump_clock: object) -> None:
    async with server(RS10, Log().responder, with_options(sessions=1)) as harbour:
        away = await begin(harbour, RS10, b"away")
        await away.expect_alive()
        await cut(away)
        old = await begin(harbour, RS10, b"half-open")
        await old.expect_alive()

        for token in (b"half-open", b"away"):
            new = await harbour.peer()
            await new.send(resume(RS10, token))
            await new.expect(resume_ok(0))
        await old.expect_end()


async def test_it_may_have_more_open_than_those_who_wait_may_have(autojump_clock: object) -> None:
    log = Log()
    async with server(RS10, log.responder, with_options(sessions_bytes=4000)) as harbour:
        old = await begin(harbour, RS10)
        await old.send(ask(1, b"wait"))
        await settle()

        new = await harbour.peer()
        await new.send(resume(RS10))
        await new.expect(resume_ok(10))
        assert log.seen == [("request", b"wait", None)]


async def test_it_is_refused_where_the_application_leaves_when_it_hears_of_the_loss(autojump_clock: object) -> None:
    responder = Responder()

    @responder.setup
    def meet(terms: Any, connection: Connection) -> None:
        connection.on_state(lambda state: connection._leave() if state == "suspended" else None)

    async with server(RS10, responder) as harbour:
        old = await begin(harbour, RS10)
        await old.expect_alive()

        with trio.fail_after(5):
            assert await expect_refused(harbour, resume(RS10)) == await expect_refused(harbour, resume(RS10, b"other"))
            await old.expect_end()
