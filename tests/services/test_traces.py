"""The context of a trace: read from a request, passed on to the calls that its handler makes, and to no others."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from rsocket_trio import (
    Channel,
    Connection,
    Outgoing,
    Payload,
    Responder,
    open_connection,
)
from rsocket_trio.metadata import COMPOSITE_METADATA, Entry, Trace, ZipkinTrace, encode_composite
from rsocket_trio.services import Bearer, Call, Receiving, current_call
from tests.connection.pairs import connected_pair, settle
from tests.services.interactions import INTERACTIONS, ask, every_interaction, served

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
TRACEPARENT = f"00-{TRACE_ID}-b7ad6b7169203331-01"
OTHER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"
# As rsocket-java's tracing writes its carrier: the header's name as the type in text, its length less one before it.
PARENT_ENTRY = b"\x0atraceparent\x00\x00\x37" + TRACEPARENT.encode()
STATE_ENTRY = b"\x09tracestate\x00\x00\x08vendor=1"
BAGGAGE_ENTRY = b"\x06baggage\x00\x00\x08tier=pro"
# 0xFD is message/x.rsocket.tracing-zipkin.v0; 0xA0 says that ids follow and that the trace is sampled.
ZIPKIN_ENTRY = b"\xfd\x00\x00\x11\xa0" + bytes.fromhex("463ac35c9f6413ad" + "a2fb4a1d1a96d312")
WHOLE = PARENT_ENTRY + STATE_ENTRY + BAGGAGE_ENTRY + ZIPKIN_ENTRY
READ = Trace(
    traceparent=TRACEPARENT,
    tracestate="vendor=1",
    baggage="tier=pro",
    zipkin=ZipkinTrace(trace_id="463ac35c9f6413ad", span_id="a2fb4a1d1a96d312", sampled=True),
)


class Behind:
    """A server behind the one that is called, and the metadata of the requests that it got."""

    def __init__(self) -> None:
        self.got: list[bytes | None] = []
        self.responder = responder = Responder()

        @responder.request_response
        def respond(request: Payload) -> bytes:
            self.got.append(request.metadata)
            return b""

        @responder.fire_and_forget
        def forget(request: Payload) -> None:
            self.got.append(request.metadata)

        @responder.request_stream
        async def stream(request: Payload) -> AsyncIterator[bytes]:
            self.got.append(request.metadata)
            yield b""

        @responder.request_channel
        async def channel(channel: Channel) -> None:
            self.got.append(channel.request.metadata)

    @asynccontextmanager
    async def connected(self, **options: Any) -> AsyncIterator[Connection]:
        """A connection to it."""
        async with connected_pair(self.responder, **options) as pair:
            yield pair.client

    @asynccontextmanager
    async def in_front(self) -> AsyncIterator[tuple[Connection, Connection]]:
        """A connection to a server that asks this one for each request, and its connection to this one."""
        front = Responder()
        front.authenticate(lambda credentials, where: "ada")
        async with self.connected() as onwards:

            @front.request_response
            async def forward(request: Payload) -> Payload:
                return await onwards.request_response()

            async with connected_pair(front) as pair:
                yield pair.client, onwards


# Reading


@every_interaction
async def test_the_trace_is_readable_in_handlers_and_interceptors(interaction: str) -> None:
    seen: list[Trace | None] = []
    responder = Responder()

    @responder.around
    async def look(call: Call) -> AsyncIterator[None]:
        seen.append(call.trace)
        yield
        seen.append(call.trace)

    def note() -> None:
        seen.append(current_call().trace)

    @responder.request_response
    async def respond(number: int) -> int:
        note()
        return number

    responder.fire_and_forget(lambda request: note())

    @responder.request_stream
    async def push(request: Payload, out: Outgoing) -> None:
        note()

    @responder.request_channel
    async def channel(numbers: Receiving[int]) -> AsyncIterator[int]:
        note()
        yield 1

    async with connected_pair(responder) as pair:
        await ask(pair.client, interaction, Payload(b"1", WHOLE))
        await settle()

    assert seen == [READ] * 3


async def test_interceptors_of_the_client_read_and_write_it() -> None:
    seen: list[Trace | None] = []
    behind = Behind()

    async def begin_span(call: Call) -> AsyncIterator[None]:
        seen.append(call.trace)
        call.entries[:] = [entry for entry in call.entries if entry.mime != "traceparent"]
        call.entries.append(Entry("traceparent", OTHER.encode()))
        seen.append(call.trace)
        yield

    async with behind.connected(around=[begin_span]) as client:
        await client.request_response(Payload(b"", PARENT_ENTRY))
        await client.request_response()

    assert seen == [Trace(traceparent=TRACEPARENT), Trace(traceparent=OTHER), None, Trace(traceparent=OTHER)]
    assert behind.got == [PARENT_ENTRY.replace(TRACEPARENT.encode(), OTHER.encode())] * 2


MALFORMED = {
    "a short id": b"\x0atraceparent\x00\x00\x04" + b"00-1",
    "ids of zeros": b"\x0atraceparent\x00\x00\x37" + f"00-{'0' * 32}-{'0' * 16}-01".encode(),
    "not UTF-8": b"\x06baggage\x00\x00\x02\xff\xfe",
    "no parent": STATE_ENTRY,
    "cut short": b"\xfd\x00\x00\x02\xa0\x00",
    "empty": b"\x0atraceparent\x00\x00\x00",
}


@pytest.mark.parametrize("metadata", MALFORMED.values(), ids=MALFORMED)
async def test_a_malformed_trace_is_none_and_goes_no_further(metadata: bytes) -> None:
    seen: list[Trace | None] = []
    behind = Behind()
    responder = Responder()
    async with behind.connected() as onwards:

        @responder.request_response("price")
        async def price(symbol: str) -> str:
            seen.append(current_call().trace)
            await onwards.request_response()
            return symbol

        async with connected_pair(responder) as pair:
            answer = await pair.client.request_response(Payload(b'"ACME"', metadata), route="price")

    assert answer.data == b'"ACME"'
    assert seen == [None]
    assert behind.got == [None]


async def test_what_is_sound_beside_what_is_malformed_goes_on() -> None:
    behind = Behind()
    async with behind.in_front() as (client, _):
        broken = MALFORMED["cut short"] + MALFORMED["not UTF-8"]
        await client.request_response(Payload(b"", broken + PARENT_ENTRY))
        twice = PARENT_ENTRY + PARENT_ENTRY.replace(TRACEPARENT.encode(), OTHER.encode())
        await client.request_response(Payload(b"", twice))

    assert behind.got == [PARENT_ENTRY] * 2, "of several the first one counts"


# Passing on


@every_interaction
@pytest.mark.parametrize("outer", INTERACTIONS)
async def test_calls_of_every_handler_carry_its_trace_on_as_it_came(interaction: str, outer: str) -> None:
    behind = Behind()
    responder = Responder()
    async with behind.connected() as onwards:

        @responder.request_response
        async def respond(request: Payload) -> bytes:
            await ask(onwards, interaction)
            return b""

        @responder.fire_and_forget
        async def forget(request: Payload) -> None:
            await ask(onwards, interaction)

        @responder.request_stream
        async def stream(request: Payload) -> AsyncIterator[bytes]:
            yield b"before"
            await ask(onwards, interaction)

        @responder.request_channel
        async def channel(channel: Channel) -> None:
            await channel.send(b"before")
            await ask(onwards, interaction)

        async with connected_pair(responder) as pair:
            await ask(pair.client, outer, Payload(b"", WHOLE))
            await settle()
            await ask(pair.client, outer)
            await settle()

    assert behind.got == [WHOLE, None]


async def test_handlers_at_the_same_time_keep_their_traces_apart() -> None:
    behind = Behind()
    responder = Responder()
    async with behind.connected() as onwards:

        @responder.request_response
        async def forward(request: Payload) -> Payload:
            for _ in range(5):
                await trio.lowlevel.checkpoint()
            return await onwards.request_response()

        async with connected_pair(responder) as pair, trio.open_nursery() as nursery:
            for number in range(20):
                entry = encode_composite([Entry("baggage", b"number=%d" % number)]) if number % 2 else None
                nursery.start_soon(pair.client.request_response, Payload(b"", entry))

    expected = [encode_composite([Entry("baggage", b"number=%d" % number)]) for number in range(1, 20, 2)]
    assert behind.got.count(None) == 10
    assert sorted(each for each in behind.got if each) == sorted(expected)


async def test_entries_of_the_caller_win() -> None:
    behind = Behind()
    responder = Responder()
    own_parent = PARENT_ENTRY.replace(TRACEPARENT.encode(), OTHER.encode())
    async with behind.connected() as onwards:

        @responder.request_response
        async def forward(request: Payload) -> bytes:
            await onwards.request_response(Payload(b"", own_parent))
            await onwards.request_response(Payload(b"", b"\x06baggage\x00\x00\x03a=b"))
            await onwards.request_response(Payload(b"", b"\x09tracestate\x00\x00\x03a=b"))
            return b""

        async with connected_pair(responder) as pair:
            await pair.client.request_response(Payload(b"", PARENT_ENTRY + STATE_ENTRY + BAGGAGE_ENTRY))

    assert behind.got == [
        own_parent + BAGGAGE_ENTRY,  # the state belongs to the other trace
        b"\x06baggage\x00\x00\x03a=b" + PARENT_ENTRY + STATE_ENTRY,
        b"\x09tracestate\x00\x00\x03a=b" + PARENT_ENTRY + BAGGAGE_ENTRY,
    ]


async def test_nothing_else_of_a_request_is_passed_on() -> None:
    behind = Behind()
    deadline = b"\x21message/x.rsocket-trio.deadline.v0\x00\x00\x04\x00\x00\xff\xff"
    own = encode_composite([Entry("application/x.own", b"mine")])
    async with behind.in_front() as (client, _):
        await client.request_response(Payload(b"", own + deadline + PARENT_ENTRY), auth=Bearer("token"))

    assert behind.got == [PARENT_ENTRY]


# And no further


async def test_calls_outside_of_handlers_carry_nothing() -> None:
    behind = Behind()
    async with behind.in_front() as (client, onwards):
        await client.request_response(Payload(b"", WHOLE))
        await onwards.request_response()
        for _ in range(3):
            await client.request_response()

    assert behind.got == [WHOLE, None, None, None, None]


@pytest.mark.parametrize(
    "options", [{"metadata_mime": "text/plain"}, {"dialect": "streamux/1"}], ids=["text", "streamux"]
)
async def test_connections_without_composite_metadata_carry_no_trace(options: dict[str, Any]) -> None:
    behind, responder = Behind(), Responder()
    async with served(behind.responder) as uri, open_connection(uri, **options) as onwards:

        @responder.request_response
        async def forward(request: Payload) -> Payload:
            return await onwards.request_response(b"data")

        async with connected_pair(responder) as pair:
            await pair.client.request_response(Payload(b"", WHOLE))

    assert behind.got == [None]


async def test_the_metadata_type_of_a_single_request_counts() -> None:
    """In the extension draft a payload may have types of its own."""
    seen: list[object] = []
    responder = Responder()
    responder.authenticate(lambda credentials, where: credentials.token)

    @responder.around
    async def look(call: Call) -> AsyncIterator[None]:
        seen.append((call.trace, len(call.entries), call.user))
        yield

    responder.request_response(lambda request: b"")
    async with connected_pair(responder, dialect="rsocket/2.0-draft", metadata_mime="text/plain") as pair:
        await pair.client.request_response(Payload(b"", b"a text"))
        request = Payload(b"", PARENT_ENTRY, metadata_mime=COMPOSITE_METADATA)
        await pair.client.request_response(request)
        await pair.client.request_response(request, auth=Bearer("ada"))

    parent = Trace(traceparent=TRACEPARENT)
    assert seen == [(None, 0, None), (parent, 1, None), (parent, 2, "ada")]
