"""Two tasks of one program talk in frames under a name."""

from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from rsocket_trio.mux.framing import Framing24
from rsocket_trio.transports.connect import open_transport
from rsocket_trio.transports.listen import Accepted, open_listeners
from rsocket_trio.transports.memory import BATCHES, dial, listen_memory, memory_pair
from rsocket_trio.transports.schemes import parse_uri
from tests.transports.pairs import listening


async def test_what_one_end_sends_the_other_receives_whole_and_in_order() -> None:
    left, right = memory_pair()

    assert left.is_message_based
    left.use_framing(Framing24())
    await left.send([b"one", (b"t", memoryview(b"wo"))])
    await left.send([b"three"])
    assert await right.receive() == [b"one", b"two", b"three"]
    await right.send([b"back"])
    assert await left.receive() == [b"back"]


async def test_the_end_is_an_empty_list_and_stays_so() -> None:
    left, right = memory_pair()
    await left.send([b"last"])
    await left.aclose()

    assert await right.receive() == [b"last"]
    assert await right.receive() == []
    assert await right.receive() == []
    with pytest.raises(trio.BrokenResourceError):
        await right.send([b"too late"])


async def test_send_waits_for_a_receiver_that_is_behind() -> None:
    left, right = memory_pair()
    sent = 0

    async def send_many() -> None:
        nonlocal sent
        for _ in range(BATCHES + 3):
            await left.send([b"frame"])
            sent += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send_many)
        await wait_all_tasks_blocked()
        assert sent == BATCHES
        received = 0
        while received < BATCHES + 3:
            received += len(await right.receive())


async def test_a_name_connects_a_client_with_its_listener() -> None:
    async def echo(accepted: Accepted) -> None:
        async with accepted.open() as transport:
            assert transport.handshake.transport == "memory"
            await transport.send(await transport.receive())

    async with listening(echo, "memory://echo") as [uri], open_transport(uri) as client:
        assert uri == "memory://echo"
        await client.send([b"hello"])
        assert await client.receive() == [b"hello"]
        assert await client.receive() == []
    with pytest.raises(ConnectionRefusedError):
        await dial(parse_uri("memory://echo"))


async def test_a_name_is_taken_until_its_listener_closes() -> None:
    first = listen_memory("once")

    with pytest.raises(OSError, match="cannot listen on memory://once: the name is taken"):
        await open_listeners(["memory://once"])
    await first.aclose()
    second = listen_memory("once")
    await first.aclose()  # closing twice does not free what somebody else has now
    client = await dial(parse_uri("memory://once"))
    await second.accept()
    await second.aclose()
    await client.aclose()


async def test_connections_that_nobody_accepted_end_when_the_listener_closes() -> None:
    listener = listen_memory("busy")
    client = await dial(parse_uri("memory://busy"))

    with trio.CancelScope() as scope:
        scope.cancel()
        await listener.aclose()

    assert await client.receive() == []
    await client.aclose()
