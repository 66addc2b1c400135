"""Deadlines travel: as bytes on the wire, to the server's handlers, and on to the calls that those make."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from rsocket_trio import (
    Canceled,
    Channel,
    Invalid,
    Outgoing,
    Payload,
    Responder,
)
from rsocket_trio.metadata import COMPOSITE_METADATA, Entry, encode_composite
from rsocket_trio.services import Call, current_call
from tests.conformance import raw
from tests.connection.pairs import connected_pair, settle
from tests.services.interactions import ask, every_interaction

# An entry with its type spelt out: 34 characters, then a length of three bytes.
HEAD = b"\x21message/x.rsocket-trio.deadline.v0\x00\x00\x04"
DEADLINE = "message/x.rsocket-trio.deadline.v0"
TOO_LATE = b"the deadline of the call has passed"
EACH = {
    "request_response": (raw.REQUEST_RESPONSE, None),
    "fire_and_forget": (raw.REQUEST_FNF, None),
    "request_stream": (raw.REQUEST_STREAM, 10),
    "request_channel": (raw.REQUEST_CHANNEL, 10),
}
"""The frame of each interaction, and the credit in it."""


def milliseconds(number: int) -> bytes:
    """Return the entry that says that so many milliseconds are left."""
    return HEAD + number.to_bytes(4, "big")


def asked(interaction: str, stream_id: int, metadata: bytes, data: bytes = b"1") -> bytes:
    """Return a request of a peer made of bytes."""
    kind, credit = EACH[interaction]
    return raw.request(kind, stream_id, raw.sized(metadata) + data, n=credit, flags=raw.M)


def metadata_of(frame: raw.Raw) -> bytes:
    """Return the metadata of a request."""
    if not frame.flags & raw.M:
        return b""
    body = frame.body[4:] if frame.type in (raw.REQUEST_STREAM, raw.REQUEST_CHANNEL) else frame.body
    return body[3 : 3 + int.from_bytes(body[:3], "big")]


def composite_client(**options: Any) -> Any:
    """Return a client with composite metadata, and a server made of bytes."""
    return raw.client(raw.RS10, metadata_mime=COMPOSITE_METADATA, **options)


async def sent_by(interaction: str, peer: raw.RawPeer) -> bytes:
    """Return the metadata of the request that comes next."""
    frame = await peer.receive()
    assert frame.type == EACH[interaction][0]
    return metadata_of(frame)


async def never() -> None:
    await trio.sleep_forever()


# What is written


@every_interaction
@pytest.mark.parametrize(
    ("seconds", "written"),
    [(1.5, 1500), (0.0101, 11), (0.001, 1), (0.0001, 1), (60, 60_000), (5_000_000, 2**32 - 1)],
)
async def test_the_time_left_is_four_bytes_of_milliseconds_rounded_up(
    interaction: str, seconds: float, written: int, autojump_clock: MockClock
) -> None:
    async with composite_client(deadlines=True) as (client, peer), trio.open_nursery() as nursery:

        async def call() -> None:
            with trio.move_on_after(seconds):
                await ask(client, interaction)

        nursery.start_soon(call)
        assert await sent_by(interaction, peer) == milliseconds(written)
        nursery.cancel_scope.cancel()


@every_interaction
async def test_deadlines_do_not_travel_unless_they_are_asked_to(interaction: str, autojump_clock: MockClock) -> None:
    async with composite_client() as (client, peer), trio.open_nursery() as nursery:

        async def call() -> None:
            with trio.move_on_after(1):
                await ask(client, interaction)

        nursery.start_soon(call)
        assert await sent_by(interaction, peer) == b""
        nursery.cancel_scope.cancel()


async def test_the_entry_follows_the_route_and_the_entries_of_the_caller(autojump_clock: MockClock) -> None:
    own = encode_composite([Entry("application/x.own", b"mine")])
    async with composite_client(deadlines=True) as (client, peer), trio.open_nursery() as nursery:

        async def call() -> None:
            with trio.move_on_after(1):
                await client.request_response(Payload(b"", own), route="price")

        nursery.start_soon(call)
        # 0xFE is message/x.rsocket.routing.v0.
        assert await sent_by("request_response", peer) == b"\xfe\x00\x00\x06\x05price" + own + milliseconds(1000)
        nursery.cancel_scope.cancel()


async def test_a_scope_of_an_interceptor_counts(autojump_clock: MockClock) -> None:
    async def limit(call: Call) -> AsyncIterator[None]:
        await trio.sleep(1)
        with trio.move_on_after(3):
            yield

    async with composite_client(deadlines=True, around=[limit]) as (client, peer), trio.open_nursery() as nursery:

        async def call(interaction: str) -> None:
            with trio.move_on_after(5):
                await ask(client, interaction)

        for interaction in EACH:
            nursery.start_soon(call, interaction)
            assert await sent_by(interaction, peer) == milliseconds(3000)
        nursery.cancel_scope.cancel()


async def test_an_expired_deadline_sends_nothing(autojump_clock: MockClock) -> None:
    async with connected_pair(deadlines=True) as pair:
        for interaction in EACH:
            with trio.move_on_after(0) as scope:
                await ask(pair.client, interaction)
            assert scope.cancelled_caught
        await settle()
        assert pair.client_said.names == []


@pytest.mark.parametrize("metadata_mime", ["text/plain", "message/x.rsocket.routing.v0"])
async def test_a_connection_without_composite_metadata_carries_no_deadline(
    metadata_mime: str, autojump_clock: MockClock
) -> None:
    responder = Responder()
    responder.request_response(lambda request: request.metadata or b"none")
    async with connected_pair(responder, metadata_mime=metadata_mime, deadlines=True) as pair:
        with trio.fail_after(1):
            assert (await pair.client.request_response()).data == b"none"


# The time left is that of the moment when a request goes out


@every_interaction
async def test_a_request_that_waited_for_a_lease_says_what_is_left_then(
    interaction: str, autojump_clock: MockClock
) -> None:
    async with composite_client(deadlines=True, lease=True) as (client, peer), trio.open_nursery() as nursery:

        async def call() -> None:
            with trio.move_on_after(10):
                await ask(client, interaction)

        nursery.start_soon(call)
        await trio.sleep(4)
        await peer.send(raw.lease(60_000, 1))
        assert await sent_by(interaction, peer) == milliseconds(6000)
        nursery.cancel_scope.cancel()


def routed(route: str) -> bytes:
    """Return the entry of a route."""
    return encode_composite([Entry("message/x.rsocket.routing.v0", bytes([len(route)]) + route.encode())])


# What a server does with it


class Noted:
    """The handlers of one kind, and how many seconds each ran before it was cancelled."""

    def __init__(self) -> None:
        self.ran: list[float] = []
        self.responder = Responder()

    async def wait(self) -> None:
        started = trio.current_time()
        try:
            await trio.sleep_forever()
        finally:
            self.ran.append(trio.current_time() - started)


def of_bytes() -> Noted:
    noted = Noted()
    responder = noted.responder

    @responder.request_response
    async def respond(request: Payload) -> bytes:
        await noted.wait()
        return b""

    @responder.fire_and_forget
    async def forget(request: Payload) -> None:
        await noted.wait()

    @responder.request_stream
    async def generate(request: Payload) -> AsyncIterator[bytes]:
        await noted.wait()
        yield b""

    @responder.request_channel
    async def converse(channel: Channel) -> None:
        await noted.wait()

    return noted


async def end_of(interaction: str, peer: raw.RawPeer, stream_id: int = 1) -> None:
    """The stream ends as one whose deadline has passed, and nothing else came on it."""
    frame = await next_frame(peer)
    assert (frame.error_code, frame.stream_id, frame.body[4:]) == (raw.CANCELED, stream_id, TOO_LATE)


async def next_frame(peer: raw.RawPeer) -> raw.Raw:
    """Return the next frame that is no credit."""
    while (frame := await peer.receive()).type == raw.REQUEST_N:
        pass
    return frame


@every_interaction
async def test_a_handler_is_cancelled_on_time_although_no_cancel_comes(
    interaction: str, autojump_clock: MockClock
) -> None:
    noted = of_bytes()
    async with raw.bare_server(raw.RS10, noted.responder) as peer:
        await peer.send(raw.setup(metadata_mime=COMPOSITE_METADATA.encode()))
        await peer.send(asked(interaction, 1, milliseconds(500)))
        if interaction == "fire_and_forget":
            await trio.sleep(1)
        else:
            await end_of(interaction, peer)
        assert noted.ran == [0.5]
        await peer.expect_alive(b"")


@every_interaction
async def test_a_deadline_that_is_over_keeps_the_handler_from_running(
    interaction: str, autojump_clock: MockClock
) -> None:
    noted = of_bytes()
    async with raw.bare_server(raw.RS10, noted.responder) as peer:
        await peer.send(raw.setup(metadata_mime=COMPOSITE_METADATA.encode()), asked(interaction, 1, milliseconds(0)))
        if interaction != "fire_and_forget":
            await end_of(interaction, peer)
        await peer.expect_alive(b"")

    assert noted.ran == []


async def late(clock: MockClock) -> None:
    """Work for two seconds without looking at what goes on."""
    clock.jump(2)


def too_late(clock: MockClock) -> Responder:
    """Return a responder of handlers that do not notice that they are cancelled."""
    responder = Responder()

    @responder.request_response
    async def respond(request: Payload) -> bytes:
        await late(clock)
        return b"late"

    @responder.request_response("inline")
    def respond_inline(request: Payload) -> bytes:
        clock.jump(2)
        return b"late"

    @responder.request_response("shielded")
    async def respond_shielded(request: Payload) -> bytes:
        with trio.CancelScope(shield=True):
            await trio.sleep(2)
        return b"late"

    @responder.request_stream
    async def generate(request: Payload) -> AsyncIterator[bytes]:
        yield b"in time"
        await late(clock)
        yield b"late"

    @responder.request_stream("push")
    async def push(request: Payload, out: Outgoing) -> None:
        await out.send(b"in time")
        await late(clock)
        await out.send_many([b"late", b"later"])

    @responder.request_channel
    async def converse(channel: Channel) -> None:
        await channel.send(b"in time")
        await late(clock)
        await channel.send(b"late")

    return responder


@pytest.mark.parametrize("route", [None, "inline", "shielded"])
async def test_a_late_answer_is_not_sent(route: str | None, autojump_clock: MockClock) -> None:
    async with raw.bare_server(raw.RS10, too_late(autojump_clock)) as peer:
        await peer.send(raw.setup(metadata_mime=COMPOSITE_METADATA.encode()))
        metadata = (routed(route) if route else b"") + milliseconds(1000)
        await peer.send(asked("request_response", 1, metadata))
        assert await peer.expect_error(1, raw.CANCELED) == TOO_LATE


@pytest.mark.parametrize(
    ("interaction", "route"),
    [("request_stream", None), ("request_stream", "push"), ("request_channel", None)],
)
async def test_late_items_are_not_sent(interaction: str, route: str | None, autojump_clock: MockClock) -> None:
    async with raw.bare_server(raw.RS10, too_late(autojump_clock)) as peer:
        await peer.send(raw.setup(metadata_mime=COMPOSITE_METADATA.encode()))
        metadata = (routed(route) if route else b"") + milliseconds(1000)
        await peer.send(asked(interaction, 1, metadata))
        assert (await next_frame(peer)).body == b"in time"
        await end_of(interaction, peer)


@every_interaction
@pytest.mark.parametrize("content", [b"", b"\x00\x00\x01", b"\x00\x00\x00\x00\x01"])
async def test_a_malformed_entry_is_invalid(interaction: str, content: bytes, autojump_clock: MockClock) -> None:
    noted = of_bytes()
    metadata = encode_composite([Entry(DEADLINE, content)])
    async with connected_pair(noted.responder) as pair:
        if interaction == "fire_and_forget":
            await pair.client.fire_and_forget(Payload(b"", metadata))
            await settle()
            assert pair.server.faults.dropped == 1
        else:
            with pytest.raises(Invalid, match=f"metadata: deadline of {len(content)} bytes, not 4"):
                await ask(pair.client, interaction, Payload(b"", metadata))

    assert noted.ran == []


async def test_of_several_entries_the_nearest_deadline_counts(autojump_clock: MockClock) -> None:
    for order in ((3000, 500), (500, 3000)):
        noted = of_bytes()
        metadata = b"".join(map(milliseconds, order))
        async with connected_pair(noted.responder) as pair:
            with pytest.raises(Canceled):
                await pair.client.request_response(Payload(b"", metadata))

        assert noted.ran == [0.5]


async def test_after_a_deadline_the_next_calls_have_none(autojump_clock: MockClock) -> None:
    seen: list[float] = []
    responder = Responder()

    @responder.request_response
    async def look(request: Payload) -> bytes:
        seen.append(trio.current_effective_deadline())
        with pytest.raises(LookupError):
            current_call()
        return b""

    @responder.request_response("bounded")
    async def bounded(request: Payload) -> bytes:
        assert current_call().route == "bounded"
        await never()
        return b""

    async with connected_pair(responder, deadlines=True) as pair:
        await pair.client.request_response()
        with trio.move_on_after(1):
            await pair.client.request_response(route="bounded")
        await settle()
        await pair.client.request_response()

    assert seen == [float("inf")] * 2


@pytest.mark.parametrize(
    "dialect", ["reactivesocket/0.0", "reactivesocket/0.1", "reactivesocket/0.2", "rsocket/2.0-draft"]
)
async def test_deadlines_and_traces_travel_in_every_dialect_with_composite_metadata(
    dialect: str, autojump_clock: MockClock
) -> None:
    seen: list[tuple[float, str | None]] = []
    responder = Responder()

    @responder.request_response
    async def look(request: Payload) -> bytes:
        trace = current_call().trace
        assert trace is not None
        seen.append((trio.current_effective_deadline() - trio.current_time(), trace.baggage))
        await never()
        return b""

    baggage = encode_composite([Entry("baggage", b"a=b")])
    async with connected_pair(responder, dialect=dialect, deadlines=True) as pair:
        start = trio.current_time()
        with trio.move_on_after(2):
            await pair.client.request_response(Payload(b"", baggage))
        assert trio.current_time() == start + 2

    assert seen == [(2, "a=b")]


# On to the next


async def test_calls_of_a_handler_inherit_the_deadline_over_two_hops(autojump_clock: MockClock) -> None:
    left: dict[str, float] = {}
    last = Responder()

    @last.request_response
    async def end(request: Payload) -> bytes:
        left["last"] = trio.current_effective_deadline() - trio.current_time()
        await never()
        return b""

    @last.request_stream
    async def end_too(request: Payload) -> AsyncIterator[bytes]:
        left["stream"] = trio.current_effective_deadline() - trio.current_time()
        yield b""

    async with connected_pair(last, deadlines=True) as far:
        middle = Responder()

        @middle.request_response
        async def onwards(request: Payload) -> Payload:
            await trio.sleep(1)
            left["middle"] = trio.current_effective_deadline() - trio.current_time()
            async with far.client.request_stream() as items:
                assert len([item async for item in items]) == 1
            await trio.sleep(0.5)
            return await far.client.request_response()

        async with connected_pair(middle, deadlines=True) as near:
            start = trio.current_time()
            with pytest.raises(trio.TooSlowError), trio.fail_after(4):
                await near.client.request_response()
            assert trio.current_time() == start + 4

    assert left == {"middle": pytest.approx(3), "stream": pytest.approx(3), "last": pytest.approx(2.5)}
