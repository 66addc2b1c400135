"""What users see of a session that outlives its transport: nothing but a pause."""

from __future__ import annotations

import random

import pytest
import trio
import trio.testing

from rsocket_trio import (
    ConnectionLost,
    Limits,
    Payload,
    Responder,
)
from rsocket_trio.rsocket.extensions.payloads import Resumable
from tests.connection.resuming import (
    Book,
    Network,
    each,
    numbers,
    pair,
    settle,
)
from tests.each_row import ALL_CASES, each_row

# Everything goes on


@each
@each_row("seed", range(12 if ALL_CASES else 4))
async def test_nothing_is_lost_and_nothing_comes_twice_wherever_links_break(
    autojump_clock: object, dialect: str, seed: int
) -> None:
    rng = random.Random(seed)
    book = Book()
    # The first link has to get the SETUP across, and its answer.
    network = Network([rng.randrange(200, 600), *(rng.randrange(1, 400) for _ in range(40))])
    sent = [b"note %d" % number for number in range(30)]
    results: dict[str, list[bytes]] = {}
    async with pair(book.responder, dialect, network=network, fragment_size=64) as both, trio.open_nursery() as nursery:

        async def stream(name: str) -> None:
            async with both.client.request_stream(b"60", initial_request_n=rng.choice((1, 3, 50))) as items:
                results[name] = [item.data async for item in items]

        async def channel(name: str) -> None:
            results[name] = []
            async with both.client.request_channel(initial_request_n=4) as talk, trio.open_nursery() as inner:

                async def say() -> None:
                    for number in range(40):
                        await talk.send(b"%d" % number)
                    await talk.send_eof()

                inner.start_soon(say)
                async for item in talk:
                    results[name].append(item.data)

        async def ask(number: int) -> None:
            data = bytes([number]) * rng.randrange(1, 300)
            results[f"answer {number}"] = [data, (await both.client.request_response(data)).data]

        async def tell() -> None:
            for one in sent:
                await both.client.fire_and_forget(one)
                await trio.sleep(rng.random())

        for number in range(3):
            nursery.start_soon(stream, f"stream {number}")
            nursery.start_soon(channel, f"channel {number}")
        for number in range(10):
            nursery.start_soon(ask, number)
        nursery.start_soon(tell)
    assert len(network.links) > 10
    for name, got in results.items():
        if name.startswith("answer"):
            assert got[0] == got[1]
        else:
            assert got == numbers(60 if name.startswith("stream") else 40), name
    assert len(results) == 16
    notes = [one for one in book.seen if isinstance(one, bytes) and one.startswith(b"note")]
    assert sorted(notes) == sorted(sent)


@each
async def test_a_handlers_call_to_its_client_comes_across_a_break(autojump_clock: object, dialect: str) -> None:
    book, mine = Book(), Responder()

    @mine.request_response
    async def who(request: Payload) -> bytes:
        await trio.sleep(5)
        return b"it is me"

    async with pair(book.responder, dialect, client_responder=mine) as both, trio.open_nursery() as nursery:
        answers: list[bytes] = []

        async def ask() -> None:
            answers.append((await both.client.request_response(b"call back")).data)

        nursery.start_soon(ask)
        for _ in range(3):
            await trio.sleep(1)
            await both.network.cut()
        await trio.sleep(5)
        assert answers == [b"it is me"]


@each
async def test_what_is_asked_without_a_link_is_sent_over_the_next(autojump_clock: object, dialect: str) -> None:
    book = Book()
    async with pair(book.responder, dialect) as both, trio.open_nursery() as nursery:
        await both.network.cut(down=True)
        answers: list[object] = []

        async def ask() -> None:
            answers.append((await both.client.request_response(b"late")).data)
            async with both.client.request_stream(b"5") as items:
                answers.extend([item.data async for item in items])

        nursery.start_soon(ask)
        await both.client.fire_and_forget(b"note")
        await trio.sleep(20)
        assert (both.client.status, answers, book.seen) == ("suspended", [], [])
        both.network.down = False
        await trio.sleep(15)
        assert answers == [b"late", *numbers(5)]
        assert sorted(map(str, book.seen)) == ["b'late'", "b'note'"]


@each
async def test_deadlines_and_cancels_work_without_a_link_and_are_told_later(
    autojump_clock: object, dialect: str
) -> None:
    book = Book()
    async with pair(book.responder, dialect) as both, trio.open_nursery() as nursery:
        await both.network.cut(down=True)
        with trio.move_on_after(3) as late:
            await both.client.request_response(b"never left")
        assert late.cancelled_caught
        both.network.down = False
        await trio.sleep(10)
        assert book.seen == []

        cancelled = trio.CancelScope()

        async def ask() -> None:
            with cancelled:
                await both.client.request_response(b"wait")

        nursery.start_soon(ask)
        await settle()
        await both.network.cut(down=True)
        cancelled.cancel()
        await trio.sleep(3)
        assert cancelled.cancelled_caught
        assert book.seen == [b"wait"]
        both.network.down = False
        await trio.sleep(10)
        assert book.seen == [b"wait", "Cancelled"]


# Streams that are not to go on


async def test_a_stream_that_is_not_to_outlive_its_transport_ends_with_it_and_the_others_go_on(
    autojump_clock: object,
) -> None:
    book = Book()
    async with (
        pair(book.responder, "rsocket/2.0-draft") as both,
        both.client.request_stream(b"50", initial_request_n=5) as lasting,
        both.client.request_stream(b"50", initial_request_n=5, extension_entries=[Resumable(False)]) as live,
    ):
        assert (await anext(lasting)).data == (await anext(live)).data == b"0"
        await both.network.cut()
        with pytest.raises(ConnectionLost, match="did not outlive its transport"):
            async for _ in live:
                pass
        assert [item.data async for item in lasting] == numbers(50)[1:]
        assert both.client_states == ["suspended", "open"]


# Nothing is left


@each
async def test_no_link_and_no_stream_is_left_open(autojump_clock: object, dialect: str) -> None:
    book = Book()
    async with pair(book.responder, dialect, limits=Limits(streams=100)) as both:
        for _ in range(30):
            with trio.move_on_after(0.5):
                await both.client.request_response(b"wait")
            await both.network.cut()
            await trio.sleep(0.5)
            with trio.fail_after(5):
                assert (await both.client.request_response(b"x")).data == b"x"
        await settle()
        for connection in (both.client, both.server):
            session = connection._engine.session
            assert session.is_quiet
            assert session.outbox.size == 0
        links = both.network.links
    assert len(links) == 31
    for link in links:
        for stream in (link.client, link.server):
            with pytest.raises((trio.ClosedResourceError, trio.BrokenResourceError)):
                await stream.send_all(b"x")
