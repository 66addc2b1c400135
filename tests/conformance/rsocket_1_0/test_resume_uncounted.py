"""A server that lets a client come back without having counted what it received: nothing is taken for the rest."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio

from rsocket_trio import Connection, ConnectionLost, ReconnectingClient, RSocketError, connect_forever
from rsocket_trio.client.reconnecting import ReconnectOptions
from rsocket_trio.transports.memory import MemoryTransport, listen_memory
from tests.conformance.raw import (
    APPLICATION_ERROR,
    CONNECTION_ERROR,
    OPAQUE,
    SETUP,
    C,
    F,
    N,
    Raw,
    RawPeer,
    Wire,
    ask,
    both,
    cancel,
    channel,
    error,
    forget,
    parsed,
    payload,
    request_n,
    settle,
    stream,
)
from tests.conformance.resuming import OPTIONS, Side, client, resume, resume_ok, token_of

clause = pytest.mark.clause
REASON = "does not count what it receives"
LAST = 144
"""The last item that comes over the first transport."""


async def serve_like_go(peer: RawPeer, first: int, end: int) -> None:
    """What rsocket-go 0.8 sends for a stream: its items from here on, whatever the client has of them."""
    await peer.send(*(payload(1, b"%d" % number) for number in range(first, end)))


async def collect(connection: Connection | ReconnectingClient, got: list[bytes], outcome: list[RSocketError]) -> None:
    try:
        async with connection.request_stream(b"count", initial_request_n=1000) as items:
            async for item in items:
                got.append(item.data)
    except RSocketError as failure:
        outcome.append(failure)


@both
@clause("RS02-RSM-25", "RS10-RSM-24", "RS10-RSM-16", "RS02-RSM-15")
async def test_no_item_is_left_out_where_the_server_says_0_and_does_not_send_the_gap(
    autojump_clock: object, wire: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    got: list[bytes] = []
    outcome: list[RSocketError] = []
    async with client(wire) as side, trio.open_nursery() as nursery:
        nursery.start_soon(collect, side.connection, got, outcome)
        await side.peer.expect(stream(1, 1000, b"count"))
        await serve_like_go(side.peer, 0, LAST + 1)
        await settle()
        await side.peer.send_bytes(b"\0\0\x09" + payload(1, b"145")[:5])  # on its way when the transport breaks
        peer = await side.asked(got=sum(len(payload(1, b"%d" % number)) for number in range(LAST + 1)))
        await peer.send(resume_ok(0), payload(1, b"146"), payload(1, b"147"))
        assert REASON.encode() in await peer.expect_failure(CONNECTION_ERROR)
        await trio.sleep(2)

        assert got == [b"%d" % number for number in range(LAST + 1)]
        [lost] = outcome
        assert isinstance(lost, ConnectionLost)
        assert "position 0" in str(lost)
        assert REASON in str(lost)
        assert side.connection.status == "closed"
        assert side.connection.faults.peer_faults == 1
        [warning] = [record for record in caplog.records if record.levelname == "WARNING"]
        assert REASON in warning.getMessage()
        for later in (side.connection.request_response(b"x"), side.connection.fire_and_forget(b"x")):
            with pytest.raises(ConnectionLost, match=REASON):
                await later
        await side.harbour.expect_nobody(300)
        outcome.clear()
        del lost


@both
async def test_a_client_that_reconnects_goes_on_in_a_new_session(autojump_clock: object, wire: Wire) -> None:
    tokens: list[bytes] = []
    listener = listen_memory("uncounted")
    terms: ReconnectOptions = {"dialect": wire.name, "resume": OPTIONS, "metadata_mime": OPAQUE.decode()}

    async def met() -> tuple[MemoryTransport, Raw]:
        transport = await listener.accept()
        [first, *_] = await transport.receive()
        return transport, parsed(first)

    got: list[bytes] = []
    outcome: list[RSocketError] = []
    try:
        async with connect_forever("memory://uncounted", **terms) as lasting, trio.open_nursery() as nursery:
            server, first = await met()
            tokens.append(token_of(first))
            nursery.start_soon(collect, lasting, got, outcome)
            assert await server.receive() == [stream(1, 1000, b"count")]
            await server.send([payload(1, b"0"), payload(1, b"1")])
            await settle()
            server.close()
            server, first = await met()
            assert first == parsed(resume(wire, tokens[0], got=14))
            await server.send([resume_ok(0), payload(1, b"3")])
            [refusal] = await server.receive()
            assert parsed(refusal).error_code == CONNECTION_ERROR

            server, first = await met()
            assert first.type == SETUP
            tokens.append(token_of(first))
            nursery.start_soon(swallow, lasting.request_response, b"again")
            assert await server.receive() == [ask(1, b"again")]
            nursery.cancel_scope.cancel()
        assert got == [b"0", b"1"]
        assert [type(one) for one in outcome] == [ConnectionLost]
        assert REASON in str(outcome[0])
        assert len(set(tokens)) == 2
        outcome.clear()
    finally:
        await listener.aclose()


async def say(side: Side, *frames: bytes) -> None:
    await side.peer.send(*frames)
    await settle()


ANSWERS = [
    pytest.param(payload(3, b"a", N | C), id="an answer"),
    pytest.param(payload(3, b"", C), id="a completion"),
    pytest.param(payload(3, b"a", N | F), id="the first piece of one"),
    pytest.param(error(3, APPLICATION_ERROR), id="an error"),
]


@both
@clause("RS02-RSM-25", "RS10-RSM-24")
@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize(("sent", "goes_on"), [(0, False), (7, False), (15, True), (24, True)])
async def test_the_server_must_have_what_it_answered_and_need_not_have_more(
    autojump_clock: object, wire: Wire, answer: bytes, sent: int, goes_on: bool
) -> None:
    async with client(wire) as side, trio.open_nursery() as nursery:
        for number, data in ((1, b"1"), (3, b"22"), (5, b"333")):
            nursery.start_soon(swallow, side.connection.request_response, data)
            await side.peer.expect(ask(number, data))
        await say(side, answer)
        peer = await side.asked(got=len(answer))
        await peer.send(resume_ok(sent))
        if goes_on:
            if sent == 15:
                await peer.expect(ask(5, b"333"))
            await side.connection.fire_and_forget(b"next")
            await peer.expect(forget(7, b"next"))
        else:
            assert REASON.encode() in await peer.expect_failure(CONNECTION_ERROR)
        nursery.cancel_scope.cancel()


async def swallow(call: Callable[[bytes], Awaitable[object]], data: bytes) -> None:
    try:
        await call(data)
    except RSocketError:
        return


@both
@clause("RS02-RSM-25")
@pytest.mark.parametrize(
    "answer", [request_n(1, 1), cancel(1), payload(1, b"a")], ids=["credit", "a cancel", "an item"]
)
async def test_whatever_comes_on_a_channel_shows_that_its_request_arrived(
    autojump_clock: object, wire: Wire, answer: bytes
) -> None:
    async with client(wire) as side, side.connection.request_channel(b"c", initial_request_n=2):
        await side.peer.expect(channel(1, 2, b"c"))
        await say(side, answer)
        peer = await side.asked(got=len(answer))
        await peer.send(resume_ok(0))
        assert REASON.encode() in await peer.expect_failure(CONNECTION_ERROR)
