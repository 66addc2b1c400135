"""Requests, channels and pings over Streamux: what arrives, what is cancelled, and when an id is free again."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from rsocket_trio import Canceled, Channel, ConnectionClosed, LocalProtocolError, Payload, Responder
from tests.connection.pairs import settle
from tests.connection.streamux_pairs import echoing, streamux_pair, widths
from tests.each_row import each_row
from tests.streamux.pairs import Chunk

clause = pytest.mark.clause


def waiting() -> Responder:
    """Answers ``now`` at once and everything else never."""
    responder = Responder()

    @responder.request_response
    async def wait(request: Payload) -> bytes:
        if request.data != b"now":
            await trio.sleep_forever()
        return b"answer"

    return responder


# Whole messages


@each_row("size", [1, 65534, 65535, 65536, 1_000_000])
async def test_a_message_of_any_size_arrives_whole_both_ways(size: int, autojump_clock: MockClock) -> None:
    data = bytes(range(97, 123)) * (size // 26 + 1)
    async with streamux_pair(echoing()) as pair:
        answer = await pair.client.request_response(data[:size])

    assert answer == Payload(data[:size].upper())
    assert max(len(chunk.payload) for chunk in pair.client_said) <= 65535
    assert sum(chunk.termination for chunk in pair.client_said) == 1


# Channels


async def test_the_chunks_of_a_channel_are_its_items(autojump_clock: MockClock) -> None:
    responder = Responder()
    asked: list[Payload] = []

    @responder.request_channel
    async def echo(channel: Channel) -> None:
        asked.append(channel.request)
        async for item in channel:
            await channel.send(item.data.upper())

    async with streamux_pair(responder) as pair:
        async with pair.client.request_channel(b"one") as channel:
            await channel.send(b"two")
            await channel.send(b"three")
            await channel.send_eof()
            got = [item.data async for item in channel]
        await settle()

    assert asked == [Payload()]
    assert got == [b"ONE", b"TWO", b"THREE"]
    assert [chunk.payload for chunk in pair.client_said] == [b"one", b"two", b"three", b""]
    assert pair.client_said[-1].termination
    assert pair.server_said[-1] == Chunk(channel._opened()[0].id, response=True, termination=True)


@clause("SMX-MSG-09")
async def test_a_handler_that_returns_first_ends_the_channel_and_sending_says_so(autojump_clock: MockClock) -> None:
    responder = Responder()

    @responder.request_channel
    async def enough(channel: Channel) -> None:
        await channel.send(await anext(channel))

    async with streamux_pair(responder, client=widths(0)) as pair:
        async with pair.client.request_channel(b"only") as channel:
            assert [item.data async for item in channel] == [b"only"]
            with pytest.raises(Canceled):
                await channel.send(b"more")
            with trio.fail_after(1):
                await channel.wait_send_closed()
        with trio.fail_after(1):  # the id is free again
            await pair.client.ping()

    assert pair.client_said[:2] == [Chunk(0, b"only"), Chunk(0)]


@clause("SMX-MSG-04", "SMX-MSG-05")
async def test_what_would_be_a_ping_or_a_cancel_is_a_value_error_and_the_connection_goes_on(
    autojump_clock: MockClock,
) -> None:
    async with streamux_pair(echoing()) as pair:
        with pytest.raises(ValueError, match="it would be a ping"):
            await pair.client.request_response()
        async with pair.client.request_channel() as channel:
            with pytest.raises(ValueError, match="it would be a ping"):
                await channel.send_eof()
            with pytest.raises(ValueError, match="it would be a cancel"):
                await channel.send(b"")
            await settle()
            assert pair.client_said == []
            await channel.send(b"first")
            await channel.send_eof()
            assert [item.data async for item in channel] == [b"FIRST"]
            with pytest.raises(LocalProtocolError):
                await channel.send(b"late")


# Cancelling


@clause("SMX-CAN-01", "SMX-CAN-03")
@each_row("how", ["deadline", "leaving", "error"])
async def test_giving_up_cancels_the_handler_and_frees_the_id_on_the_ack(how: str, autojump_clock: MockClock) -> None:
    responder = Responder()
    ended: list[str] = []

    @responder.request_channel
    async def forever(channel: Channel) -> None:
        try:
            async for _ in channel:
                await channel.send(b"got it")
            await trio.sleep_forever()
        except trio.Cancelled:
            ended.append("cancelled")
            raise

    async with streamux_pair(responder, client=widths(0)) as pair:
        if how == "deadline":
            with pytest.raises(trio.TooSlowError), trio.fail_after(5):
                await pair.client.request_response(b"q")
        elif how == "leaving":
            async with pair.client.request_channel(b"q") as channel:
                await anext(channel)
        else:

            async def fail() -> None:
                async with pair.client.request_channel(b"q") as channel:
                    await anext(channel)
                    raise KeyError

            with pytest.raises(KeyError):
                await fail()
        await settle()
        assert ended == ["cancelled"]
        async with pair.client.request_channel(b"again") as channel:
            assert (await anext(channel)).data == b"got it"

    assert Chunk(0) in pair.client_said
    assert Chunk(0, response=True) in pair.server_said


# Ids


@clause("SMX-FLD-07", "SMX-NEG-08")
async def test_with_all_ids_in_flight_requests_wait_in_order_and_may_give_up(autojump_clock: MockClock) -> None:
    responder = Responder()

    @responder.request_response
    async def slow(request: Payload) -> bytes:
        await trio.sleep(1)
        return request.data

    async with streamux_pair(responder, client=widths(1)) as pair, trio.open_nursery() as nursery:
        answered: list[bytes] = []
        scopes = [trio.CancelScope() for _ in range(10)]

        async def ask(number: int) -> None:
            with scopes[number]:
                answered.append((await pair.client.request_response(b"%d" % number)).data)

        for number in range(10):
            nursery.start_soon(ask, number)
            await settle()
        assert [chunk.payload for chunk in pair.client_said] == [b"0", b"1"]
        scopes[3].cancel()
        scopes[4].cancel()

    served = [b"%d" % number for number in range(10) if number not in (3, 4)]
    assert [chunk.payload for chunk in pair.client_said] == served
    assert sorted(answered) == served


@each_row("drains", [False, True])
async def test_who_waits_for_an_id_hears_of_the_end(drains: bool, autojump_clock: MockClock) -> None:
    raised: list[Exception] = []
    async with streamux_pair(waiting(), client=widths(0)) as pair, trio.open_nursery() as nursery:

        async def ask() -> None:
            try:
                await pair.client.request_response(b"never")
            except ConnectionClosed as error:
                raised.append(error)

        for _ in range(3):
            nursery.start_soon(ask)
        await settle()
        if drains:
            await pair.client.drain(grace=1)
        else:
            pair.client._leave()

    assert len(raised) == 3


# Pings
