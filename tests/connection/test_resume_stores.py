"""What happens when the store of sent frames is full, and what is kept once a connection is over."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import trio
import trio.testing

from rsocket_trio import (
    ConnectionLost,
    RejectedResume,
)
from tests.connection.resuming import (
    CLIENTS,
    OPTIONS,
    SERVERS,
    Book,
    each,
    numbers,
    pair,
)


@each
async def test_a_full_store_stalls_its_sender_and_loses_nothing(autojump_clock: object, dialect: str) -> None:
    options = attrs.evolve(OPTIONS, store_bytes=2048)
    book = Book()
    async with (
        pair(book.responder, dialect, options=options, fragment_size=1024) as both,
        both.client.request_stream(b"3000", initial_request_n=3000) as items,
    ):
        got = [(await anext(items)).data]
        both.network.link.deaf = {CLIENTS}
        with trio.move_on_after(20):
            async for item in items:
                got.append(item.data)
        assert 50 < len(got) < 300
        await both.network.link.hear(CLIENTS)
        async for item in items:
            got.append(item.data)
            if len(got) == 1500:
                both.network.link.cut()
        assert got == numbers(3000)


@each
async def test_metadata_that_is_larger_than_the_store_stalls_nothing(autojump_clock: object, dialect: str) -> None:
    book = Book()
    pushed: list[int] = []

    @book.responder.metadata_push
    def push(metadata: bytes) -> None:
        pushed.append(len(metadata))

    options = attrs.evolve(OPTIONS, store_bytes=1024)
    async with pair(book.responder, dialect, options=options, fragment_size=1024) as both:
        with trio.fail_after(5):
            await both.client.metadata_push(bytes(50_000))
            assert (await both.client.request_response(b"behind")).data == b"behind"
        assert pushed == [50_000]


@each
@pytest.mark.parametrize("who", ["client", "server"])
async def test_a_side_may_give_up_instead_of_stalling(
    autojump_clock: object, dialect: str, who: str, caplog: pytest.LogCaptureFixture
) -> None:
    small = attrs.evolve(OPTIONS, store_bytes=1024, give_up_when_full=True)
    patient = attrs.evolve(OPTIONS, store_bytes=1024)
    book = Book()
    settings = {"options": small, "server_options": patient} if who == "client" else {"server_options": small}
    if who == "server":
        settings["options"] = patient
    async with pair(book.responder, dialect, fragment_size=512, **settings) as both:  # type: ignore[arg-type]
        if who == "client":
            both.network.link.deaf = {SERVERS}
            for number in range(100):
                await both.client.fire_and_forget(b"%04d" % number + bytes(46))
            await trio.sleep(1)
            assert len(book.seen) == 100
            await both.network.link.hear(SERVERS)
            assert (both.client.can_resume, both.server.can_resume) == (False, True)
            states = both.client_states
        else:
            async with both.client.request_stream(b"500", initial_request_n=500) as items:
                both.network.link.deaf = {CLIENTS}
                await trio.sleep(1)
                await both.network.link.hear(CLIENTS)
                assert [item.data async for item in items] == numbers(500)
            assert (both.client.can_resume, both.server.can_resume) == (True, False)
            states = both.server_states
        assert states == ["open"]
        assert "can't be resumed" in caplog.text
        # The side that still keeps what it sends goes on hearing how far the other got.
        for _ in range(10):
            assert len((await both.client.request_response(bytes(400))).data) == 400
        async with both.client.request_stream(b"400") as items:
            assert [item.data async for item in items] == numbers(400)
        await both.network.cut()
        await trio.sleep(30)
        assert both.client.status == "closed"
        with pytest.raises((ConnectionLost, RejectedResume)):
            await both.client.request_response(b"x")


# An end


@each
@pytest.mark.parametrize("link", ["lost", "there"])
async def test_a_connection_that_is_over_keeps_nothing_of_what_it_sent(
    autojump_clock: object, dialect: str, link: str
) -> None:
    book = Book()
    async with (
        pair(book.responder, dialect, options=attrs.evolve(OPTIONS, session_seconds=5)) as both,
        both.client.request_stream(b"3000", initial_request_n=3000) as items,
        both.client.request_channel(initial_request_n=3000) as channel,
    ):
        assert (await anext(items)).data == b"0"
        outboxes = [connection._engine.session.outbox for connection in (both.client, both.server)]
        if link == "lost":
            both.network.link.deaf = {CLIENTS, SERVERS}
        for _ in range(100):
            await channel.send(b"x" * 1000)
        assert all(kept(outbox) for outbox in outboxes)
        if link == "lost":
            await both.network.cut(down=True)
        else:
            both.client._leave()
        await trio.sleep(6)
        assert (both.client.status, both.server.status) == ("closed", "closed")
        assert [kept(outbox) for outbox in outboxes] == [0, 0]


def kept(outbox: Any) -> int:
    """Bytes that an outbox refers to."""
    store = outbox.store
    frames = [*outbox._resending, *(store.kept() if store is not None else ())]
    return sum(map(len, frames)) + int(outbox.size)
