"""Requests, one-way messages and what surrounds them, between us and each peer, whichever side asks."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import pytest
import trio

from rsocket_trio import Keepalive, Lease, Payload, RejectedSetup, Responder, Setup, open_connection
from rsocket_trio.metadata import COMPOSITE_METADATA, ROUTING, TEXT_PLAIN, Entry, encode_composite, with_route
from tests.interop.both_ways import Asker, Setting, asking, eventually, serving, told
from tests.interop.peers import KINDS, TRANSPORTS, Kind, TransportName, client_peer, server_peer

ENTRY = encode_composite([Entry(TEXT_PLAIN, b"a word beside the route")])


async def test_a_request_is_answered_with_data_and_metadata(setting: Setting) -> None:
    async with asking(setting) as asker:
        reply = await asker.do("request_response", route="echo", data=b"hi", metadata=ENTRY)

    assert (reply["ok"], reply["data"]) == (True, b"hi")
    assert reply["metadata"] == with_route("echo", ENTRY, COMPOSITE_METADATA)


async def test_fire_and_forget_arrives(setting: Setting) -> None:
    async with asking(setting) as asker:
        for data in (b"one", b"two"):
            assert (await asker.do("fire_and_forget", route="echo", data=data))["ok"]

        assert await received(asker, "fnf", 2) == [b"one", b"two"]


async def test_metadata_is_pushed(setting: Setting) -> None:
    async with asking(setting) as asker:
        assert (await asker.do("metadata_push", metadata=ENTRY))["ok"]

        assert await received(asker, "push", 1) == [ENTRY]


async def received(asker: Asker, what: str, count: int) -> list[bytes]:
    """Return what came to the responder without an answer."""
    came: list[bytes] = []

    async def all_came() -> bool:
        came.extend(bytes.fromhex(data) for data in (await told(asker, "received"))[what])
        return len(came) >= count

    await eventually(all_came)
    return came


async def test_the_side_that_answers_can_ask_back(setting: Setting) -> None:
    async with asking(setting) as asker:
        command = {"do": "request_response", "route": "echo", "data": b"who is it?".hex()}
        reply = await told(asker, "call", json.dumps(command).encode())
        assert bytes.fromhex(reply["data"]) == b"who is it?"

        command = {"do": "request_stream", "route": "count", "data": b"3".hex()}
        counted = await told(asker, "call", json.dumps(command).encode())
        assert (counted["completed"], counted["items"]) == (True, [b"0".hex(), b"1".hex(), b"2".hex()])


# ---- the terms of a connection, from either side


async def test_a_server_reads_our_setup(kind: Kind, transport: TransportName) -> None:
    connect = partial(
        open_connection,
        setup=Payload(b"a token", b"its kind"),
        data_mime="text/plain",
        metadata_mime="message/x.rsocket.routing.v0",
        keepalive=Keepalive(interval=12.345, max_lifetime=67.89),
    )
    async with connect(await server_peer(kind, transport)) as connection:
        said = json.loads((await connection.request_response(route="setup")).data)

    assert (bytes.fromhex(said["data"]), bytes.fromhex(said["metadata"])) == (b"a token", b"its kind")
    assert (said["data_mime"], said["metadata_mime"]) == ("text/plain", "message/x.rsocket.routing.v0")
    assert (said.get("keepalive", 12_345), said.get("lifetime", 67_890)) == (12_345, 67_890)


async def test_our_server_reads_a_setup(kind: Kind, transport: TransportName) -> None:
    connect = partial(client_peer, kind, setup="a token", keepalive=12_000, lifetime=67_000, metadata_mime=ROUTING)

    async with serving(transport) as uri, connect(uri) as client:
        said = await told(client, "setup")

    assert bytes.fromhex(said["data"]) == b"a token"
    assert (said["data_mime"], said["metadata_mime"]) == ("application/octet-stream", ROUTING)
    assert (said["keepalive"], said["lifetime"]) == (12_000, 67_000)


async def test_a_server_that_refuses_us_says_why(kind: Kind, transport: TransportName) -> None:
    async with open_connection(await server_peer(kind, transport), setup="refuse") as connection:
        with pytest.raises(RejectedSetup, match="refused as asked"):
            await connection.request_response("anyone there?")
        with pytest.raises(RejectedSetup, match="refused as asked"):
            await connection.request_response("still not?")


async def test_a_client_that_we_refuse_hears_why(kind: Kind, transport: TransportName) -> None:
    async with serving(transport) as uri, client_peer(kind, uri, setup="refuse") as client:
        closed = await client.do("wait_closed")

    assert (closed["code"], closed["error"]) == (RejectedSetup.default_code, "refused as asked")


@pytest.mark.parametrize("kind", KINDS)
async def test_keepalives_keep_connections_that_are_idle_for_longer_than_their_lifetime(kind: Kind) -> None:
    keepalive = Keepalive(interval=0.25, max_lifetime=2.0)
    milliseconds: dict[str, Any] = {"keepalive": 250, "lifetime": 2000}
    async with AsyncExitStack() as stack:
        ours, theirs = [], []
        for transport in TRANSPORTS[kind]:
            uri = await server_peer(kind, transport)
            ours.append(await stack.enter_async_context(open_connection(uri, keepalive=keepalive)))
            uri = await stack.enter_async_context(serving(transport))
            theirs.append(await stack.enter_async_context(client_peer(kind, uri, **milliseconds)))
        await trio.sleep(1.5 * keepalive.max_lifetime)

        for connection in ours:
            assert (await connection.request_response("awake?")).text == "awake?"
            assert 0 <= await connection.ping() < keepalive.max_lifetime
        for client in theirs:
            assert (await client.do("request_response", data=b"awake?"))["data"] == b"awake?"


# ---- leases


@pytest.mark.parametrize(("kind", "transport"), [("py", "tcp"), ("py", "ws")])
async def test_we_ask_no_more_often_than_a_lease_allows(kind: Kind, transport: TransportName) -> None:
    async with open_connection(await server_peer(kind, transport, lease=3), lease=True) as connection:
        for _ in range(3):
            assert (await connection.request_response("hi")).text == "hi"
        with trio.move_on_after(0.1) as patience:
            await connection.request_response("one too many")

        assert patience.cancelled_caught
        assert connection.lease is not None
        assert connection.lease.number_of_requests == 0


async def test_a_client_asks_no_more_often_than_our_lease_allows(kind: Kind, transport: TransportName) -> None:
    responder = Responder()
    more, asked = trio.Event(), []

    @responder.request_response
    def answer(request: Payload) -> str:
        asked.append(request.text)
        return "yes"

    @responder.lease
    async def grants(setup: Setup) -> AsyncIterator[Lease]:
        yield Lease(3, 60)
        await more.wait()
        yield Lease(2, 60)

    async def three_were_asked() -> bool:
        return len(asked) == 3

    async def let_more_come() -> None:
        assert await eventually(three_were_asked)
        await trio.sleep(0.1)
        assert await three_were_asked()
        more.set()

    async with (
        serving(transport, responder) as uri,
        client_peer(kind, uri, lease=256) as client,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(let_more_come)
        result = await client.do("many", count=5, data=b"may I?")

    assert (result["ok"], result["answers"], len(asked)) == (True, 5, 5)


# ---- everyone on one port
