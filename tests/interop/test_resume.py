"""Sessions with rsocket-js go on over new connections, in both roles: each item comes once and in order."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator, Iterator

import pytest
import trio

from qa.items import ASKED, ASKING
from qa.resume.ledger import Ledger
from qa.resume.proxy import FIN, RST, Cut, cutting_proxy
from qa.resume.recorder import CLIENT, SERVER, Recorder
from rsocket_trio import Channel, Connection, Keepalive, Payload, Responder, ResumeOptions, open_connection, serve
from rsocket_trio.connection.protocols import ALL
from rsocket_trio.rsocket.dialect import RSOCKET_1_0
from tests.interop.peers import Kind, own_peer

CUTS = 20
# As in resume.js:
COUNT, STREAMS, CHANNELS, CREDIT, MAX_FILL = 400, 4, 2, 16, 3_000
FIRST_CHANNEL = 100
BEGUN = 600
"""Bytes behind which a connection has begun: a client of theirs never recovers from one that is lost before that."""
OPTIONS = ResumeOptions(session_seconds=10, first_delay=0.01, longest_delay=0.1)
KEEPALIVE = Keepalive(interval=0.2, max_lifetime=5)
PATIENCE = 60.0

pytestmark = pytest.mark.parametrize("kind", ["js"])


def cuts(*, spare_answers: bool = False) -> Iterator[Cut]:
    """Cuts in either direction; with ``spare_answers`` none that can lose a RESUME_OK."""
    chance = random.Random(20)
    while True:
        at, side = chance.randint(BEGUN, 10_000), chance.choice((CLIENT, SERVER))
        how, deliver = chance.choice((FIN, RST)), chance.random() < 0.5
        if spare_answers and side == SERVER:
            how, deliver = FIN, True
        yield Cut(side, at, how, deliver)


def item(number: int) -> bytes:
    """Return what the peer sends with this number."""
    return b"%d:" % number + bytes([number % 251]) * (number * 997 % MAX_FILL)


def read(payload: Payload) -> int:
    """The number of an item; -1 of one that is damaged."""
    number = int(payload.data.partition(b":")[0])
    return number if payload.data == item(number) else -1


async def test_a_client_of_theirs_comes_back_to_a_server_of_ours(kind: Kind) -> None:
    ledger, recorder = Ledger(), Recorder(RSOCKET_1_0)
    responder = responder_for(ledger)
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            # Every dialect on one port: its RESUME has to be recognised as well.
            [uri] = await nursery.start(_serve, responder)
            port = int(uri.rpartition(":")[2])
            async with cutting_proxy(port, cuts(spare_answers=True), recorder=recorder) as proxy:
                with own_peer(kind, "resume", "client", str(proxy.port)) as peer:
                    proxy.limit = CUTS
                    said = json.loads(await peer.line())
            nursery.cancel_scope.cancel()

    results = [*enumerate(said["streams"]), *enumerate(said["channels"], FIRST_CHANNEL)]
    for stream, result in results:
        assert result["error"] is None
        ledger.offer_numbers(stream, ASKED, COUNT)
        for number in result["numbers"]:
            ledger.receive_number(stream, ASKED, number)
    assert len(results) == STREAMS + CHANNELS
    check(ledger, recorder, proxy.made)


async def test_a_client_of_ours_comes_back_to_a_server_of_theirs(kind: Kind) -> None:
    ledger, recorder = Ledger(), Recorder(RSOCKET_1_0)
    with trio.fail_after(PATIENCE):
        with own_peer(kind, "resume", "server") as peer:
            port = int((await peer.line()).removeprefix("PORT "))
            async with (
                cutting_proxy(port, cuts(), recorder=recorder) as proxy,
                open_connection(proxy.uri, resume=OPTIONS, keepalive=KEEPALIVE) as connection,
            ):
                proxy.limit = CUTS
                async with trio.open_nursery() as nursery:
                    for stream in range(STREAMS):
                        nursery.start_soon(take_stream, connection, stream, ledger)
                    for stream in range(FIRST_CHANNEL, FIRST_CHANNEL + CHANNELS):
                        nursery.start_soon(take_channel, connection, stream, ledger)

    check(ledger, recorder, proxy.made)


def check(ledger: Ledger, recorder: Recorder, made: int) -> None:
    """Everything came once and in order, although all cuts were made."""
    verdict = ledger.verdict()
    assert verdict.is_clean, verdict
    assert verdict.items >= (STREAMS + CHANNELS) * COUNT
    assert recorder.complaints == []
    assert made == CUTS
    assert recorder.resumed == CUTS


def responder_for(ledger: Ledger) -> Responder:
    """Return what the peer's script serves, by our own."""
    responder = Responder()
    started = iter(range(FIRST_CHANNEL))

    @responder.request_stream
    async def numbers(request: Payload) -> AsyncIterator[bytes]:
        ledger.start(next(started))
        for number in range(COUNT):
            yield item(number)

    @responder.request_channel
    async def echo(channel: Channel) -> None:
        stream = FIRST_CHANNEL + next(started)
        ledger.start(stream)
        ledger.offer_numbers(stream, ASKING, COUNT)
        async for message in channel:
            ledger.receive_number(stream, ASKING, read(message))
            await channel.send(message)

    return responder


async def take_stream(connection: Connection, stream: int, ledger: Ledger) -> None:
    """All items of one stream."""
    ledger.offer_numbers(stream, ASKED, COUNT)
    async with connection.request_stream(b"numbers", initial_request_n=CREDIT) as items:
        async for one in items:
            ledger.receive_number(stream, ASKED, read(one))


async def take_channel(connection: Connection, stream: int, ledger: Ledger) -> None:
    """A channel that is echoed."""

    async def send() -> None:
        for number in range(COUNT):
            await channel.send(item(number))
        await channel.send_eof()

    ledger.offer_numbers(stream, ASKED, COUNT)
    async with connection.request_channel(b"echo", initial_request_n=CREDIT) as channel, trio.open_nursery() as nursery:
        nursery.start_soon(send)
        async for one in channel:
            ledger.receive_number(stream, ASKED, read(one))


async def _serve(responder: Responder, task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED) -> None:
    await serve(responder, "tcp://127.0.0.1:0", dialects=ALL, resume=OPTIONS, grace=0, task_status=task_status)
