"""Metadata of an application's own: entries behind the route and before the payload's own, on every request."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Protocol

import pytest

from rsocket_trio import Channel, Payload, Responder, Unsupported
from rsocket_trio.metadata import AUTHENTICATION, ROUTING, Entry
from rsocket_trio.services import (
    Bearer,
    Call,
    Service,
    Stream,
    TypedChannel,
    fire_and_forget,
    request_channel,
    request_response,
    request_stream,
)
from tests.connection.pairs import connected_pair, settle
from tests.connection.streamux_pairs import streamux_pair
from tests.services.interactions import INTERACTIONS, ask, every_interaction

COLOUR = "text/x.colour"
BLUE = (COLOUR, b"blue")
# The bytes of composite metadata: the type's length less one and the type, or 0x80 and a number; a length; the content.
ROUTE_BYTES = b"\xfe\x00\x00\x05\x04here"
BLUE_BYTES = b"\x0ctext/x.colour\x00\x00\x04blue"
OWN_BYTES = b"\x0ctext/x.flavor\x00\x00\x01s"


class Server:
    """A responder that keeps the metadata of each request."""

    def __init__(self) -> None:
        self.metadata: list[bytes | None] = []
        self.entries: list[list[Entry]] = []
        self.responder = Responder()

        @self.responder.around
        async def note(call: Call) -> AsyncIterator[None]:
            self.entries.append(call.entries)
            yield

        for route in "here", "box.respond", "box.note", "box.ticks", "box.talk", None:
            self.responder.request_response(route)(self.respond)
            self.responder.fire_and_forget(route)(self.respond)
            self.responder.request_stream(route)(self.generate)
            self.responder.request_subscription(route)(self.generate)
            self.responder.request_channel(route)(self.converse)

    def respond(self, request: Payload) -> bytes:
        self.metadata.append(request.metadata)
        return b"yes"

    async def generate(self, request: Payload) -> AsyncIterator[bytes]:
        for number in b"1", b"2", b"3":
            yield number if number != b"1" else self.respond(request)

    async def converse(self, channel: Channel) -> None:
        await channel.send(self.respond(channel.request))


async def test_it_stands_behind_the_route_and_before_the_payloads_own_on_every_request() -> None:
    server = Server()
    async with connected_pair(server.responder) as pair:
        for interaction in INTERACTIONS:
            await ask(pair.client, interaction, Payload(b"1", OWN_BYTES), route="here", metadata=[BLUE])

    assert server.metadata == [ROUTE_BYTES + BLUE_BYTES + OWN_BYTES] * 4
    assert server.entries[0][1:] == [Entry(COLOUR, b"blue"), Entry("text/x.flavor", b"s")]


async def test_text_is_utf_8_and_order_and_repeats_are_kept() -> None:
    server = Server()
    pairs: Any = iter(
        [(COLOUR, "grün"), [COLOUR, bytearray(b"2")], ("application/json", memoryview(b"{}")), (0x55, b"")]
    )
    async with connected_pair(server.responder) as pair:
        await pair.client.request_response(metadata=pairs)

    contents: list[tuple[str | int, bytes]] = [
        (COLOUR, "grün".encode()),
        (COLOUR, b"2"),
        ("application/json", b"{}"),
        (0x55, b""),
    ]
    assert server.entries == [[Entry(mime, content) for mime, content in contents]]


async def test_interceptors_see_and_change_it_and_credentials_come_with_it() -> None:
    server = Server()

    async def repaint(call: Call) -> AsyncIterator[None]:
        assert [entry.mime for entry in call.entries] == [COLOUR, AUTHENTICATION]
        call.entries[0] = Entry(COLOUR, b"red")
        yield

    async with connected_pair(server.responder, around=[repaint]) as pair:
        await pair.client.request_response(metadata=[BLUE], auth=Bearer("t"))

    assert [entry.mime for entry in server.entries[0]] == [COLOUR, AUTHENTICATION]
    assert server.entries[0][0].content == b"red"


@every_interaction
async def test_without_composite_metadata_it_is_a_value_error(interaction: str) -> None:
    server = Server()
    async with connected_pair(server.responder, metadata_mime="text/plain") as pair:
        said = len(pair.client_said)
        with pytest.raises(
            ValueError,
            match=r"^metadata= needs composite metadata, and the connection has metadata MIME type 'text/plain'$",
        ):
            await ask(pair.client, interaction, metadata=[BLUE])
        assert len(pair.client_said) == said


@every_interaction
async def test_streamux_has_none(interaction: str) -> None:
    async with streamux_pair(Server().responder) as pair:
        said = len(pair.client_said)
        with pytest.raises(Unsupported, match=r"^streamux/1 has no metadata$"):
            await ask(pair.client, interaction, metadata=[BLUE])
        assert len(pair.client_said) == said


@pytest.mark.parametrize(
    ("wrong", "error", "text"),
    [
        (b"blue", TypeError, "metadata= is pairs of a MIME type and bytes or str, not bytes"),
        ("blue", TypeError, "metadata= is pairs of a MIME type and bytes or str, not str"),
        ({COLOUR: b"blue"}, TypeError, "metadata= is pairs of a MIME type and bytes or str; one is of type str"),
        ([(COLOUR, 1)], TypeError, "metadata= is pairs of a MIME type and bytes or str; one is of type tuple"),
        ([(COLOUR,)], TypeError, "metadata= is pairs of a MIME type and bytes or str; one is of type tuple"),
        ([(b"a/b", b"")], TypeError, "metadata= is pairs of a MIME type and bytes or str; one is of type tuple"),
        ([("", b"")], ValueError, "type '': 1 to 128 ASCII characters can be written"),
        ([("text/grün", b"")], ValueError, "type 'text/grün': 1 to 128 ASCII characters can be written"),
        ([("a" * 129, b"")], ValueError, "1 to 128 ASCII characters can be written"),
        ([(128, b"")], ValueError, "type number 128: 0 to 127 can be written"),
    ],
)
async def test_what_is_no_pair_is_refused_before_anything_is_sent(
    wrong: Any, error: type[Exception], text: str
) -> None:
    server = Server()
    async with connected_pair(server.responder) as pair:
        said = len(pair.client_said)
        for interaction in INTERACTIONS:
            with pytest.raises(error, match=text):
                await ask(pair.client, interaction, metadata=wrong)
        with pytest.raises(error, match=text):
            pair.client.remote(Box, metadata=wrong)
        assert len(pair.client_said) == said


# Contracts, and clients that reconnect


class Box(Service, Protocol, route="box"):
    @request_response
    async def respond(self, text: str) -> bytes: ...
    @fire_and_forget
    async def note(self, text: str) -> None: ...
    @request_stream
    def ticks(self, text: str) -> Stream[bytes]: ...
    @request_channel
    def talk(self) -> TypedChannel[bytes, bytes]: ...


async def use(box: Any) -> None:
    """Call every method, two of them twice."""
    for _ in range(2):
        assert await box.respond("x") == b"yes"
        await box.note("x")
    async with box.ticks("x") as ticks:
        assert [tick async for tick in ticks] == [b"yes", b"2", b"3"]
    async with box.talk() as talk:
        assert [item async for item in talk] == [b"yes"]


async def test_each_call_of_a_contract_carries_what_its_remote_object_was_made_with() -> None:
    server = Server()
    async with connected_pair(server.responder) as pair:
        await use(pair.client.remote(Box, metadata=iter([BLUE])))
        await settle()
        await pair.client.remote(Box).respond("x")

    *with_it, without = server.entries
    assert [entries[1] for entries in with_it] == [Entry(COLOUR, b"blue")] * 6
    assert [entry.mime for entry in without] == [ROUTING]
