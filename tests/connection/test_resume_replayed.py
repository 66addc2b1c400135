"""Somebody recorded how a client came back, and says it again behind every cut: nothing is lost, and nothing ends."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio
import trio.testing

from rsocket_trio import Connection
from tests.connection.resuming import DIALECTS, Book, Link, Network, numbers, pair, settle
from tests.each_row import ALL_CASES

CUTS = 40 if ALL_CASES else 16
BETWEEN = 6
"""Items from one cut to the next."""
REJECTED_RESUME = b"\x00\x00\x00\x04"
ERROR = 0x0B


class Heard(trio.abc.Stream):
    """A client's end of a stream that somebody listens to."""

    def __init__(self, stream: trio.abc.Stream, sent: bytearray) -> None:
        self._stream = stream
        self._sent = sent

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        self._sent += data
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        return await self._stream.receive_some(max_bytes)

    async def aclose(self) -> None:
        await self._stream.aclose()


class OverheardNetwork(Network):
    """A network on which somebody records what clients say first, and says it again."""

    def __init__(self) -> None:
        super().__init__()
        self._said: list[bytearray] = []
        self.held: list[trio.abc.Stream] = []
        self.refused = self.taken = 0
        self._clients: Link | None = None

    async def connect(self) -> trio.abc.Stream:
        stream = await super().connect()
        self._clients = self.links[-1]
        self._said.append(bytearray())
        return Heard(stream, self._said[-1])

    @property
    def link(self) -> Link:
        """The client's, whoever else came since."""
        return self._clients or super().link

    @property
    def resumes(self) -> list[bytes]:
        """Return how the client came back each time, the frame's length included; its first SETUP is none of it."""
        firsts = [bytes(said[: 3 + int.from_bytes(said[:3], "big")]) for said in self._said[1:]]
        return [first for first in firsts if first]

    async def replay(self, first: bytes, *, hold: bool) -> None:
        """Say this as a client would that comes back, and go, or with ``hold`` stay and say nothing more."""
        down, self.down = self.down, False
        stream = await Network.connect(self)
        self.down = down
        await stream.send_all(first)
        await settle()
        answer = bytes(await stream.receive_some())
        if answer[7] >> 2 == ERROR:
            assert answer[9:13] == REJECTED_RESUME
            assert await stream.receive_some() == b""
            self.refused += 1
        else:
            self.taken += 1
        if hold:
            self.held.append(stream)
        else:
            await trio.aclose_forcefully(stream)
        await settle()


Replays = Callable[[OverheardNetwork], list[bytes]]
"""Which of what was recorded is said again."""


def the_last(network: OverheardNetwork) -> list[bytes]:
    return network.resumes[-1:]


def the_one_before(network: OverheardNetwork) -> list[bytes]:
    return network.resumes[-2:-1]


def all_of_them(network: OverheardNetwork) -> list[bytes]:
    return network.resumes


CASES = [
    pytest.param(dialect, replays, away, id=f"{dialect}-{replays.__name__}-{'away' if away else 'back'}")
    for number, dialect in enumerate(DIALECTS)
    for turn, replays in enumerate((the_last, the_one_before, all_of_them))
    for away in (True, False)
    if ALL_CASES or (number + turn) % 2 == away  # each pair of values
]


async def attack(network: OverheardNetwork, replays: Replays, *, away: bool, hold: bool) -> None:
    """Cut the client off, and say again what it said, while it is away or when it is back."""
    known = len(network.resumes)
    await network.cut(down=away)
    if not away:
        with trio.fail_after(60):
            while len(network.resumes) == known:  # noqa: ASYNC110
                await trio.sleep(0.01)
        await settle()
    for first in list(replays(network)):
        await network.replay(first, hold=hold)
    network.down = False


@pytest.mark.clause("RS10-RSM-19", "RS02-RSM-18", "RSX-RES-08")
@pytest.mark.parametrize(("dialect", "replays", "away"), CASES)
async def test_a_replay_behind_every_cut_costs_nothing(
    autojump_clock: object, dialect: str, replays: Replays, away: bool
) -> None:
    book = Book()
    network = OverheardNetwork()
    asked: list[bytes] = []

    async def wait_long(client: Connection) -> None:
        asked.append((await client.request_response(b"wait")).data)

    async with pair(book.responder, dialect, network=network) as both, trio.open_nursery() as nursery:
        nursery.start_soon(wait_long, both.client)
        await settle()
        got: list[bytes] = []
        async with (
            both.client.request_stream(b"%d" % (BETWEEN * CUTS + 3), initial_request_n=8) as items,
            both.client.request_channel(initial_request_n=8) as channel,
        ):
            for cut in range(CUTS):
                while len(got) < BETWEEN * (cut + 1):
                    got.append((await anext(items)).data)
                    await channel.send(got[-1])
                    assert (await anext(channel)).data == got[-1]
                await attack(network, replays, away=away, hold=cut % 2 == 0)
            got += [item.data async for item in items]
            await channel.send_eof()
            assert [item async for item in channel] == []
        assert got == numbers(BETWEEN * CUTS + 3)
        book.go_on.set()
        with trio.fail_after(60):
            while not asked:  # noqa: ASYNC110
                await trio.sleep(0.1)
        assert asked == [b"wait"]
        assert book.seen == [b"wait"]
        assert "closed" not in both.client_states + both.server_states
        assert both.client.can_resume
        assert (network.refused > 0) is (replays is not the_last)
        assert (network.taken > 0) is (replays is not the_one_before)
        for stream in network.held:
            await trio.aclose_forcefully(stream)
