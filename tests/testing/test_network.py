"""The simulated network: its streams are Trio's streams, and each fault does what its name says."""

from __future__ import annotations

import math
from random import Random

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from rsocket_trio.testing import Faults, SimulatedNetwork, SimulatedStream
from rsocket_trio.testing.network import drawn_size
from tests.each_row import some

Ends = tuple[SimulatedStream, SimulatedStream]


async def ends(faults: Faults, seed: int = 0) -> tuple[SimulatedNetwork, SimulatedStream, SimulatedStream]:
    network = SimulatedNetwork(seed, faults)
    client = await network.connect()
    return network, client, await network.listener().accept()


async def read_all(stream: SimulatedStream) -> list[bytes]:
    pieces = []
    while piece := await stream.receive_some():
        pieces.append(piece)
    return pieces


FAULTS = [
    Faults(),
    Faults(split=(1, 65536), delay=(0, 2)),
    Faults(split=(1, 1000), delay=(0, 1), buffer=(64, 65536), stall=(0, 90)),
]


@pytest.mark.parametrize("faults", some(FAULTS, 1), ids=repr)
async def test_its_streams_keep_the_promises_of_trio(faults: Faults, autojump_clock: MockClock) -> None:
    async def made() -> Ends:
        return (await ends(faults))[1:]

    async def clogged() -> Ends:
        _, client, server = await ends(Faults(buffer=(1000, 1000)))
        await client.send_all(bytes(1000))
        await server.send_all(bytes(1000))
        return client, server

    await trio.testing.check_half_closeable_stream(made, clogged)


async def test_pieces_keep_their_order_and_come_within_the_bounds(autojump_clock: MockClock) -> None:
    data = Random(1).randbytes(50_000)
    _, client, server = await ends(Faults(split=(10, 500), delay=(1, 2)))
    began = trio.current_time()
    await client.send_all(data)
    await client.send_eof()

    pieces = await read_all(server)

    assert b"".join(pieces) == data
    assert all(10 <= len(piece) <= 500 for piece in pieces[:-1])
    assert 1 <= trio.current_time() - began <= 2


async def test_a_writer_waits_while_the_buffer_is_full(autojump_clock: MockClock) -> None:
    _, client, server = await ends(Faults(buffer=(100, 100)))
    with trio.move_on_after(1) as waiting:
        await client.send_all(bytes(150))
    assert waiting.cancelled_caught

    # A write that is cancelled leaves its first bytes on the wire.
    assert len(await server.receive_some()) == 100


@pytest.mark.parametrize("delivers", [True, False])
@pytest.mark.parametrize("end", ["eof", "reset"])
async def test_a_cut_happens_at_its_byte(end: str, delivers: bool, autojump_clock: MockClock) -> None:
    faults = Faults(cut_after=(70, 70), cut_from=("client",), cut_with=(end,), cut_delivers=(delivers,))  # type: ignore[arg-type]
    network, client, server = await ends(faults)
    await client.send_all(bytes(69))
    assert len(await server.receive_some()) == 69
    assert network.cuts == 0

    with pytest.raises(trio.BrokenResourceError):
        await client.send_all(bytes(10))

    assert network.cuts == 1
    if delivers:
        assert await server.receive_some() == bytes(1)
    for stream in (client, server):
        if end == "reset":
            with pytest.raises(trio.BrokenResourceError, match="reset"):
                await stream.receive_some()
        else:
            assert await stream.receive_some() == b""


async def test_in_a_half_open_connection_bytes_vanish_and_nobody_is_told(autojump_clock: MockClock) -> None:
    network, client, server = await ends(Faults(vanish_after=(5, 5), vanish_from=("client",), buffer=(10, 10)))
    await client.send_all(bytes(1000))
    await client.send_eof()

    assert await server.receive_some() == bytes(5)
    with trio.move_on_after(1000) as waiting:
        await server.receive_some()
    assert waiting.cancelled_caught
    await server.send_all(b"heard")
    assert await client.receive_some() == b"heard"
    await client.aclose()
    await server.send_all(bytes(100))  # its reader is gone, and cannot say so
    assert network.cuts == 1


async def test_when_the_time_of_faults_is_over_nothing_begins_to_vanish_or_is_cut(autojump_clock: MockClock) -> None:
    network, client, server = await ends(Faults(vanish_after=(5, 5), cut_after=(5, 5), quiet_after=(10, 10)))
    await trio.sleep(10)
    for here, there in ((client, server), (server, client)):
        await here.send_all(bytes(100))
        assert await there.receive_some() == bytes(100)
    assert network.cuts == 0


async def test_a_test_may_cut_and_silence_by_hand(autojump_clock: MockClock) -> None:
    network, client, server = await ends(Faults())
    network.vanish()
    await client.send_all(b"lost")
    with trio.move_on_after(10) as waiting:
        await server.receive_some()
    assert waiting.cancelled_caught

    network.cut()
    with pytest.raises(trio.BrokenResourceError):
        await server.receive_some()


async def test_connects_are_refused(autojump_clock: MockClock) -> None:
    network = SimulatedNetwork(0, Faults(refuse=1.0, quiet_after=(5, 5)))
    with pytest.raises(ConnectionRefusedError):
        await network.connect()

    await trio.sleep(5)
    await network.connect()  # the time of faults is over
    assert network.is_quiet


async def test_who_listens_no_more_is_not_found(autojump_clock: MockClock) -> None:
    network = SimulatedNetwork()
    listener = network.listener()
    waiting = await network.connect()
    await listener.aclose()

    assert await waiting.receive_some() == b""
    with pytest.raises(ConnectionRefusedError, match="nobody listens"):
        await network.connect()
    with pytest.raises(trio.ClosedResourceError):
        await listener.accept()
    network.listener()
    await network.connect()


async def test_a_duplicated_connect_gives_the_server_the_same_first_bytes_twice(autojump_clock: MockClock) -> None:
    network = SimulatedNetwork(0, Faults(duplicate=1.0, duplicate_bytes=(7, 7)))
    client = await network.connect()
    await client.send_all(b"a token and more")
    await client.send_eof()

    listener = network.listener()
    heard = {b"".join(await read_all(await listener.accept())) for _ in range(2)}

    assert heard == {b"a token and more", b"a token"}
    assert network.cuts == 0


async def test_each_connection_may_have_faults_of_its_own(autojump_clock: MockClock) -> None:
    network = SimulatedNetwork(0, [Faults(refuse=1.0), Faults(buffer=(1, 1)), Faults()])
    with pytest.raises(OSError, match="refuses"):
        await network.connect()
    tight, wide, another = [await network.connect() for _ in range(3)]

    await wide.send_all(bytes(100))
    await another.send_all(bytes(100))
    with trio.move_on_after(1) as waiting:
        await tight.send_all(bytes(100))
    assert waiting.cancelled_caught


async def test_connections_overtake_each_other(autojump_clock: MockClock) -> None:
    network = SimulatedNetwork(1, Faults(delay=(0, 1)))
    arrived: list[bytes] = []

    async def say(word: bytes) -> None:
        await (await network.connect()).send_all(word)

    async with trio.open_nursery() as nursery:
        for number in range(10):
            nursery.start_soon(say, b"%d" % number)
    for _ in range(10):
        arrived.append(await (await network.listener().accept()).receive_some())

    assert sorted(arrived) == [b"%d" % number for number in range(10)]
    assert arrived != sorted(arrived)


def test_a_size_of_each_order_of_magnitude_is_as_likely_as_the_next() -> None:
    chance = Random(0)
    drawn = [drawn_size(chance, (1, 65536)) for _ in range(4000)]

    assert min(drawn) == 1
    assert max(drawn) > 60_000
    for least, most in ((1, 16), (16, 256), (256, 4096), (4096, 65536)):
        assert 700 < sum(least <= size < most for size in drawn) < 1300
    assert {drawn_size(chance, (0, 1)) for _ in range(50)} == {0, 1}
    assert drawn_size(chance, (0, 0)) == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"split": (0, 5)},
        {"delay": (2, 1)},
        {"stall": (-1, 1)},
        {"refuse": 1.5},
        {"duplicate": math.nan},
        {"cut_with": ()},
    ],
)
def test_what_is_no_range_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Faults(**wrong)  # type: ignore[arg-type]


def test_no_faults_at_all_are_refused() -> None:
    with pytest.raises(ValueError, match="no faults"):
        SimulatedNetwork(0, [])
