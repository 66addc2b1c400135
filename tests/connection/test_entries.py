"""Extension entries and MIME types of payloads in the extension draft, as applications see them at both ends."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from rsocket_trio import (
    ApplicationError,
    Channel,
    ConnectionLost,
    Keepalive,
    Lease,
    LocalProtocolError,
    Payload,
    Rejected,
    Responder,
    UnsupportedSetup,
    current_connection,
    open_connection_over,
)
from rsocket_trio.connection.entries import current_request_entries
from rsocket_trio.rsocket.extensions.entries import Address, BrokerInfo, Complexity, RouteAdd, RouteJoin
from rsocket_trio.rsocket.frames import BROKER, KEEPALIVE, ExtensionEntry
from tests.conformance import raw
from tests.connection.pairs import connected_pair, settle

DRAFT = "rsocket/2.0-draft"
OCTETS = "application/octet-stream"
APP = ExtensionEntry("x.app", ignore=True, payload=b"text")
ASKING = ExtensionEntry("x.app", ignore=True, ack=True, payload=b"may I?")
ORIGIN = bytes(range(16))
clause = pytest.mark.clause


def seeing() -> tuple[Responder, list[object]]:
    """A responder that notes what its hooks see, and the entries of each request."""
    responder = Responder()
    seen: list[object] = []

    @responder.extension_entry("x.app")
    def app(point: str, content: Any) -> None:
        seen.append((point, content.payload))
        if content.payload == b"reject":
            raise Rejected("not this")
        if content.payload == b"fail":
            raise ZeroDivisionError

    @responder.extension_entry(BROKER)
    def broker(point: str, content: object) -> None:
        seen.append((point, content))

    @responder.request_response
    async def echo(asked: Payload) -> Payload:
        seen.append([one.ext for one in current_request_entries()])
        return asked

    @responder.request_stream
    async def items(asked: Payload) -> AsyncIterator[bytes]:
        seen.append([one.ext for one in current_request_entries()])
        yield b"item"

    @responder.request_channel
    async def talk(channel: Channel) -> None:
        seen.append([one.ext for one in current_request_entries()])

    @responder.fire_and_forget
    def forget(asked: Payload) -> None:
        seen.append([one.ext for one in current_request_entries()])

    return responder, seen


# SETUP


@clause("RSX-TLV-09", "RSX-OK-02")
async def test_an_entry_of_setup_is_seen_and_granted_or_not(autojump_clock: MockClock) -> None:
    responder = Responder()
    seen: list[object] = []

    @responder.extension_entry("x.app")
    def hook(point: str, content: Any) -> bytes | None:
        seen.append((point, content.payload, current_connection().dialect))
        return b"granted" if content.payload == b"may I?" else None

    async with connected_pair(responder, dialect=DRAFT, extension_entries=[ASKING]) as pair:
        assert pair.client.granted == (ExtensionEntry("x.app", ignore=True, payload=b"granted"),)
    async with connected_pair(dialect=DRAFT, extension_entries=[ASKING]) as pair:
        assert pair.client.granted == ()
    assert seen == [("SETUP", b"may I?", DRAFT)]


@clause("RSX-SETUP-03", "RSX-OK-02")
async def test_who_waits_for_setup_ok_hears_of_a_refusal_a_loss_or_its_deadline(autojump_clock: MockClock) -> None:
    with pytest.raises(UnsupportedSetup, match="lease"):
        async with connected_pair(dialect=DRAFT, lease=True):
            raise AssertionError
    for wait, kind in ((1, trio.TooSlowError), (60, ConnectionLost)):
        ours, theirs = trio.testing.memory_stream_pair()
        with pytest.raises(kind), trio.fail_after(wait):
            async with open_connection_over(theirs, dialect=DRAFT, lease=True, keepalive=Keepalive(1, 30)):
                raise AssertionError
        await ours.aclose()


# Requests and EXT


@clause("RSX-TLV-09", "RSX-GAP-04", "RSX-REQ-01", "RSX-REQ-02", "RSX-EXT-02")
async def test_entries_are_seen_at_each_point(autojump_clock: MockClock) -> None:
    responder, seen = seeing()
    async with connected_pair(responder, dialect=DRAFT, fragment_size=64) as pair:
        await pair.client.send_entries([APP])
        await pair.client.ping()
        await pair.client.request_response(b"x" * 100, extension_entries=[APP, ExtensionEntry("x.other", ignore=True)])
        async with pair.client.request_stream(extension_entries=[APP]) as items:
            assert [item.data async for item in items] == [b"item"]
        async with pair.client.request_channel(extension_entries=[APP]) as channel:
            assert [item async for item in channel] == []
        await pair.client.fire_and_forget(b"f", extension_entries=[APP])
        await pair.client.request_response(b"x")
    text = ("REQUEST", b"text")
    assert seen == [("EXT", b"text"), text, ["x.app", "x.other"], *[text, ["x.app"]] * 3, []]


async def test_a_hook_may_refuse_a_request(autojump_clock: MockClock) -> None:
    responder, seen = seeing()
    reject, fail = (
        ExtensionEntry("x.app", ignore=True, payload=b"reject"),
        ExtensionEntry("x.app", ignore=True, payload=b"fail"),
    )
    async with connected_pair(responder, dialect=DRAFT) as pair:
        with pytest.raises(Rejected, match="not this"):
            await pair.client.request_response(extension_entries=[reject])
        with pytest.raises(ApplicationError, match="internal error"):
            await pair.client.request_response(extension_entries=[fail])
        for one in (reject, fail):
            await pair.client.fire_and_forget(b"", extension_entries=[one])
        await pair.client.send_entries([fail])
        await pair.client.ping()
    assert not [one for one in seen if isinstance(one, list)]


@clause("RSX-BRK-05", "RSX-BRK-01", "RSX-BRK-02", "RSX-BRK-03", "RSX-BRK-04")
async def test_what_a_broker_says_reaches_the_hook(autojump_clock: MockClock) -> None:
    responder, seen = seeing()
    pairs = (("k", b"v"),)
    join, address = RouteJoin(ORIGIN, "shop", pairs), Address(ORIGIN, pairs, multicast=True)
    said = (BrokerInfo(ORIGIN, 9, pairs), join, RouteAdd(ORIGIN, ORIGIN, 9, "shop", pairs))
    async with connected_pair(responder, dialect=DRAFT, extension_entries=[join]) as pair:
        for one in said:
            await pair.client.send_entries([one], ignore=False)
        await pair.client.ping()
        await pair.client.request_response(b"x", extension_entries=[address])
    assert seen == [("SETUP", join), *(("EXT", one) for one in said), ("REQUEST", address), [BROKER]]


@clause("RSX-LEASE-05", "RSX-LEASE-06")
async def test_a_request_waits_for_as_many_permits_as_it_costs(autojump_clock: MockClock) -> None:
    responder, _ = seeing()

    @responder.lease
    async def policy(setup: object) -> AsyncIterator[Lease]:
        yield Lease(2, 10)
        await trio.sleep(1)
        yield Lease(3, 10)

    async with connected_pair(responder, dialect=DRAFT, lease=True) as pair:
        started = trio.current_time()
        assert pair.client.lease == Lease(2, 10)
        await pair.client.request_response(b"dear", extension_entries=[Complexity(3)])
        assert trio.current_time() - started == 1
        assert pair.client.lease == Lease(0, 10)


async def test_what_no_entry_can_say_is_refused_before_anything_is_sent(autojump_clock: MockClock) -> None:
    async with connected_pair(dialect=DRAFT) as pair:
        said = len(pair.client_said)
        for wrong in (ExtensionEntry(KEEPALIVE), Address(ORIGIN), Complexity(0), b"text", ExtensionEntry(0x55)):
            with pytest.raises(LocalProtocolError):
                await pair.client.request_response(extension_entries=[wrong])
        with pytest.raises(LocalProtocolError, match="type 1 has extension entries"):
            await pair.client.send_extension(1, b"raw")
        await settle()
        assert len(pair.client_said) == said


def test_an_extension_has_one_hook_and_some_have_none() -> None:
    responder = Responder()
    responder.extension_entry("x.app")(lambda point, content: None)
    with pytest.raises(ValueError, match=r"'x.app' has a handler already"):
        responder.extension_entry("x.app")(lambda point, content: None)
    for taken in (KEEPALIVE, 0x02, 0x03, 0x00, 0x7F, ""):
        with pytest.raises(ValueError, match="is not an application's"):
            responder.extension_entry(taken)
    with pytest.raises(TypeError, match=r"plain function \(point, content\)"):
        responder.extension_entry("x.two")(lambda content: None)  # type: ignore[type-var]


# MIME types of payloads


@clause("RSX-MIME-05", "RSX-MIME-01", "RSX-MIME-04", "RSX-PAY-01", "RSX-GAP-09", "RSX-GAP-10")
async def test_a_payload_brings_its_mime_types_in_both_directions(autojump_clock: MockClock) -> None:
    responder = Responder()
    seen: list[tuple[object, ...]] = []

    @responder.request_channel
    async def types(channel: Channel) -> None:
        seen.append((channel.request.data_mime, channel.request.metadata_mime))
        async for item in channel:
            seen.append((item.data, item.data_mime, item.metadata_mime))
        await channel.send(Payload(b"ours" * 50, b"m", data_mime="e/f", metadata_mime=0x66))

    async with (
        connected_pair(responder, dialect=DRAFT, metadata_mime=OCTETS, fragment_size=64) as pair,
        pair.client.request_channel(Payload(b"", data_mime=5)) as channel,
    ):
        await channel.send(Payload(b"x" * 100, data_mime="a/b", metadata_mime=0x66))
        await channel.send(b"y")
        await channel.send(Payload(b"z", metadata_mime=""))
        await channel.send_eof()
        answers = [item async for item in channel]
    assert answers == [Payload(b"ours" * 50, b"m", data_mime="e/f", metadata_mime=0x66)]
    assert seen == [(5, None), (b"x" * 100, "a/b", 0x66), (b"y", None, None), (b"z", None, "")]
    typed = [frame for frame in pair.client_said.of(raw.PAYLOAD) if frame.flags & 0x018]
    assert len(typed) == 2  # a type stands on the first fragment only
