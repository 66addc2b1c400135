"""The tasks of a link: one write at a time, the last word is said, and no end of a transport goes unnoticed."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from rsocket_trio import ConnectionClosed, ConnectionLost, Payload, Responder, open_connection_over
from tests.conformance import raw
from tests.connection.pairs import Recorded, connected_pair, settle


async def test_what_one_tick_queues_leaves_in_one_write(autojump_clock: MockClock) -> None:
    async with connected_pair() as pair:
        before = pair.client_said.writes
        async with trio.open_nursery() as nursery:
            for number in range(100):
                nursery.start_soon(pair.client.fire_and_forget, b"%d" % number)
        await settle()
        assert pair.client_said.writes == before + 1
        assert pair.client_said.count(raw.REQUEST_FNF) == 100


@pytest.mark.clause("RS10-QOS-01")
async def test_an_urgent_frame_waits_for_one_write_and_not_for_megabytes(autojump_clock: MockClock) -> None:
    async with connected_pair() as pair:
        pair.client_wire.hold()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pair.client.fire_and_forget, bytes(3_000_000))
            await settle()
            nursery.start_soon(pair.client.ping)
            await settle()
            pair.client_wire.release()

    place = pair.client_said.names.index("KEEPALIVE")
    assert sum(len(frame.body) for frame in pair.client_said[1:place]) <= 65536


async def test_leaving_while_the_last_write_is_on_its_way_waits_for_it(autojump_clock: MockClock) -> None:
    responder = Responder()
    got: list[bytes] = []

    @responder.fire_and_forget
    def note(request: Payload) -> None:
        got.append(request.data)

    async with connected_pair(responder) as pair, trio.open_nursery() as nursery:
        pair.client_wire.hold()
        await pair.client.fire_and_forget(b"last word")
        await settle()

        async def release() -> None:
            await trio.sleep(0.5)
            pair.client_wire.release()

        nursery.start_soon(release)
        pair.client._leave()

    assert got == [b"last word"]


class Breaking(Recorded):
    """A transport whose next write fails."""

    breaks = False

    async def send(self, frames: object) -> None:
        if self.breaks:
            await trio.lowlevel.checkpoint()
            raise trio.BrokenResourceError("the cable was cut") from OSError("no carrier")
        await super().send(frames)  # type: ignore[arg-type]


async def test_a_write_that_fails_reaches_whoever_waits_with_its_cause(autojump_clock: MockClock) -> None:
    ours, _ = trio.testing.memory_stream_pair()
    wire = Breaking(ours)
    async with open_connection_over(wire) as connection:
        await settle()
        wire.breaks = True
        with pytest.raises(ConnectionLost, match="no carrier") as caught:
            await connection.request_response()
        assert isinstance(caught.value.__cause__, trio.BrokenResourceError)
        with pytest.raises(ConnectionLost, match="no carrier"):
            await connection.ping()


async def test_what_the_peer_said_before_a_write_failed_is_still_read(autojump_clock: MockClock) -> None:
    ours, theirs = trio.testing.memory_stream_pair()
    wire = Breaking(ours)
    async with open_connection_over(wire) as connection:
        await settle()
        wire.breaks = True
        async with trio.open_nursery() as nursery:

            async def speak() -> None:
                await trio.sleep(0.1)
                await theirs.send_all(raw.prefixed(raw.error(0, raw.CONNECTION_ERROR, b"you said too much")))

            nursery.start_soon(speak)
            with pytest.raises(ConnectionLost, match="you said too much"):
                await connection.request_response()


async def test_a_peer_that_floods_with_keepalives_and_does_not_read_is_not_read_from(
    autojump_clock: MockClock,
) -> None:
    async with connected_pair() as pair:
        pair.server_wire.hold()
        session = pair.server._engine.session
        for _ in range(200):
            await pair.client_wire._stream.send_all(raw.prefixed(raw.keepalive(bytes(60_000))))
            await settle()
        assert session.outbox.reply_size <= 1024 * 1024 + 2 * 65536
        assert session.is_congested
        pair.server_wire.release()
        await settle()
        assert pair.server_said.count(raw.KEEPALIVE) == 200


async def test_what_comes_after_the_end_is_ignored(autojump_clock: MockClock) -> None:
    async with raw.client(raw.RS10) as (connection, peer):
        await peer.send(raw.error(0, raw.CONNECTION_ERROR, b"broken"), raw.ask(2), raw.keepalive())
        await settle()
        with pytest.raises(ConnectionLost, match="broken") as caught:
            await connection.request_response()
        assert caught.value.code == raw.CONNECTION_ERROR
        with trio.fail_after(5):
            assert await peer.stream.receive_some() == b""


async def test_the_peers_close_after_a_drain_is_no_loss(autojump_clock: MockClock) -> None:
    async with raw.client(raw.RS10) as (connection, peer), trio.open_nursery() as nursery:

        async def ask() -> None:
            with pytest.raises(ConnectionClosed, match="the peer closed"):
                await connection.request_response()

        nursery.start_soon(ask)
        await peer.receive()
        await peer.send(raw.error(0, raw.CONNECTION_CLOSE))
        await peer.stream.aclose()


async def test_what_waits_is_counted_and_is_read_by_the_answer_of_a_ping_behind_it(autojump_clock: MockClock) -> None:
    responder = Responder()
    got: list[int] = []
    responder.fire_and_forget("log")(lambda request: got.append(len(request.data)))

    async with connected_pair(responder) as pair:
        client = pair.client
        assert client.unsent == 0
        for _ in range(3):
            await client.fire_and_forget(Payload(bytes(500_000)), route="log")
        assert client.unsent > 500_000
        while client.unsent:
            await client.ping()
        await client.ping()

        assert got == [500_000] * 3
