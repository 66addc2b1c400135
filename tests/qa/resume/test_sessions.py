"""Sessions keep no more than they may, wait no longer than they should, and can't be had by guessing."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from qa.processes import MIB
from qa.resume.abuse import KEPT, Raw, dialled, guess, leave_behind, nowhere, refusal, resuming_server
from rsocket_trio import Connection, ResumeOptions, open_connection_over
from rsocket_trio.mux.retransmission import FrameStore
from rsocket_trio.rsocket.frames import (
    ErrorFrame,
    KeepaliveFrame,
    PayloadFrame,
    RequestNFrame,
    ResumeFrame,
    ResumeOkFrame,
    SetupFrame,
)
from rsocket_trio.rsocket.resume_protocol import TOKEN_SIZE
from rsocket_trio.server.session_registry import STREAM

REJECTED_SETUP, REJECTED_RESUME = 0x003, 0x004
STORE = 64 * 1024
ITEM = 1_000
MANY = 2**31 - 1


class Peer:
    """A server of 1.0 that is frames and nothing else, and the connections that its client dials."""

    def __init__(self) -> None:
        self.dialled: list[Raw] = []

    async def connect(self) -> trio.abc.Stream:
        """Return what the client calls for each new stream."""
        ours, theirs = trio.testing.memory_stream_pair()
        self.dialled.append(Raw(ours))
        return theirs


@asynccontextmanager
async def connected(options: ResumeOptions) -> AsyncIterator[tuple[Peer, Connection]]:
    """A client of ours and a peer that has read its SETUP."""
    peer = Peer()
    async with open_connection_over(peer.connect, resume=options) as connection:
        frame, _ = await peer.dialled[0].receive()
        assert isinstance(frame, SetupFrame)
        yield peer, connection


@pytest.fixture
def fullest(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The most bytes that any store held, at any moment."""
    most = [0]
    append = FrameStore.append

    def watched(store: FrameStore, frame: bytes) -> None:
        append(store, frame)
        most[0] = max(most[0], store.size)

    monkeypatch.setattr(FrameStore, "append", watched)
    return most


class Sender:
    """Sends items, many more than a store has room for, and counts those that ``send`` took."""

    def __init__(self) -> None:
        self.sent = 0

    async def run(self, connection: Connection) -> None:
        async with connection.request_channel(b"go") as channel:
            while self.sent < 6 * STORE // ITEM:
                await channel.send(bytes(ITEM))
                self.sent += 1
            await trio.sleep_forever()


async def read_items(raw: Raw, into: list[int], request: list[int] | None = None) -> None:
    """Grant credit, and read items without ever saying how far it got. The sizes of what came are told."""
    _, asked = await raw.receive()
    if request is not None:
        request.append(asked)
    await raw.send(RequestNFrame(1, MANY))
    size = 1
    while size:
        frame, size = await raw.receive()
        if isinstance(frame, PayloadFrame):
            into.append(size)


async def test_a_full_store_stalls_the_sender_until_the_peer_says_what_it_has(
    fullest: list[int], autojump_clock: trio.testing.MockClock
) -> None:
    sender, came = Sender(), list[int]()
    async with connected(ResumeOptions(store_bytes=STORE)) as (peer, connection), trio.open_nursery() as nursery:
        nursery.start_soon(sender.run, connection)
        nursery.start_soon(read_items, peer.dialled[0], came)
        await trio.sleep(5)

        stalled_at = len(came)
        assert STORE - 2 * ITEM < sum(came) <= STORE
        assert fullest[0] <= STORE
        assert connection.status == "open"
        await peer.dialled[0].send(KeepaliveFrame(False, sum(came) + 17))  # not a position that was reached
        await trio.sleep(1)
        assert len(came) == stalled_at

        everything = connection._engine.session.resume_handshake.positions.store.position  # type: ignore[attr-defined]
        await peer.dialled[0].send(KeepaliveFrame(False, everything))
        await trio.sleep(1)
        assert len(came) > stalled_at
        assert fullest[0] <= STORE
        nursery.cancel_scope.cancel()


async def test_nothing_is_dropped_while_the_peer_may_still_take_the_session_up(
    fullest: list[int], autojump_clock: trio.testing.MockClock
) -> None:
    sender, came, request = Sender(), list[int](), list[int]()
    async with connected(ResumeOptions(store_bytes=STORE)) as (peer, connection), trio.open_nursery() as nursery:
        nursery.start_soon(sender.run, connection)
        nursery.start_soon(read_items, peer.dialled[0], came, request)
        await trio.sleep(1)
        await peer.dialled[0].stream.aclose()
        await trio.sleep(0.5)
        second = peer.dialled[1]
        asked, _ = await second.receive()
        assert isinstance(asked, ResumeFrame)
        assert asked.first_available_client_position == 0
        # The request was answered by credit, so that it came; of what followed nothing is said.
        await second.send(ResumeOkFrame(request[0]))
        again: list[int] = []
        while len(again) < len(came):
            frame, size = await second.receive()
            assert frame is not None
            if isinstance(frame, PayloadFrame):
                again.append(size)

        assert again == came
        assert fullest[0] <= STORE
        nursery.cancel_scope.cancel()


async def test_sessions_that_clients_left_behind_stay_within_their_limits_and_end() -> None:
    options = ResumeOptions(sessions=60, sessions_bytes=50 * (KEPT + STREAM + 100), session_seconds=0.6)

    came = await leave_behind(500, options)

    assert came.left == 0
    assert 40 <= came.most_waiting <= options.sessions
    assert came.most_bytes <= options.sessions_bytes
    assert came.growth <= options.sessions_bytes + 16 * MIB


async def test_a_guessed_token_finds_nothing() -> None:
    token = secrets.token_bytes(TOKEN_SIZE)
    async with resuming_server(ResumeOptions()) as (port, sessions), dialled(port) as rightful:
        await rightful.begin(token)
        assert await rightful.is_alive()

        assert guess(sessions, 10_000, nowhere()) == 0

        assert len(sessions) == 1
        assert await rightful.is_alive()


async def test_a_second_client_with_the_same_token_harms_nobody_but_itself() -> None:
    token = secrets.token_bytes(TOKEN_SIZE)
    async with resuming_server(ResumeOptions()) as (port, sessions), dialled(port) as rightful:
        await rightful.begin(token)
        assert await rightful.is_alive()

        async with dialled(port) as second:
            await second.begin(token)
            answer, _ = await second.receive()
            assert isinstance(answer, ErrorFrame)
            assert answer.code == REJECTED_SETUP
        refused, _ = await refusal(port, token, 10**6), None
        assert refused[0] == REJECTED_RESUME

        assert len(sessions) == 1
        assert await rightful.is_alive()


async def test_an_old_resume_that_is_sent_once_more_gains_nothing() -> None:
    token = secrets.token_bytes(TOKEN_SIZE)
    async with resuming_server(ResumeOptions()) as (port, _):
        received = 0
        sent = 0
        async with dialled(port) as first:
            await first.begin(token)
            await first.ask(1, 2)
            received += (await first.receive())[1]
            sent = 10  # a REQUEST_STREAM without a payload
        async with dialled(port) as second:
            assert await second.come_back(token, received, 0) == ResumeOkFrame(sent)
            item, size = await second.receive()
            assert isinstance(item, PayloadFrame)
            old, received = received, received + size
        async with dialled(port) as third:
            assert await third.come_back(token, received, sent) == ResumeOkFrame(sent)

            # Somebody listened to the second connection, and says what was said there.
            code, _text = await refusal(port, token, old, 0)

            assert code == REJECTED_RESUME
            assert await third.is_alive()
