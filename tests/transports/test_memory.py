"""Two tasks of one program talk in frames under a name."""

from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from rsocket_trio.errors import ConnectionLost
from rsocket_trio.mux.framing import Framing24
from rsocket_trio.transports.connect import open_transport
from rsocket_trio.transports.listen import Accepted, open_listeners
from rsocket_trio.transports.memory import BATCHES, connect_memory, listen_memory, memory_pair


async def test_what_one_end_sends_the_other_receives_whole_and_in_order() -> None:
    left, right = memory_pair()

    assert left.is_message_based
    left.use_framing(Framing24())
    await left.send([b"one", (b"t", memoryview(b"wo"))])
    await left.send([b"three"])
    assert await right.receive() == [b"one", b"two", b"three"]
    await right.send([b"back"])
    assert await left.receive() == [b"back"]


async def test_what_was_peeked_is_received_again() -> None:
    left, right = memory_pair()
    await left.send([b"first", b"second"])

    assert await right.peek() == (b"first", False)
    assert await right.peek() == (b"firstsecond", False)
    assert await right.receive() == [b"first", b"second"]
    await left.aclose()
    assert await right.peek() == (b"", True)


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


async def test_finish_discards_until_the_peer_finishes() -> None:
    left, right = memory_pair()
    await right.send([b"unread"])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(left.finish)
        assert await right.receive() == []
        await right.send([b"unread too"])
        await wait_all_tasks_blocked()
        assert len(nursery.child_tasks) == 1
        await right.finish()


async def test_finish_ends_early_once_four_mebibytes_were_discarded() -> None:
    left, right = memory_pair()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(left.finish)
        for _ in range(5):
            await right.send([bytes(1024 * 1024)])


async def test_finish_and_close_of_a_closed_end_do_nothing() -> None:
    left, _right = memory_pair()
    await left.aclose()

    await left.finish()
    await left.aclose()


async def test_a_name_connects_a_client_with_its_listener() -> None:
    (listener,) = await open_listeners(["memory://echo"])
    async with trio.open_nursery() as nursery:

        async def echo(accepted: Accepted) -> None:
            async with accepted.open() as transport:
                assert transport.handshake.transport == "memory"
                await transport.send(await transport.receive())

        assert await nursery.start(listener.serve, echo) == "memory://echo"
        async with open_transport("memory://echo") as client:
            await client.send([b"hello"])
            assert await client.receive() == [b"hello"]
            assert await client.receive() == []
        nursery.cancel_scope.cancel()
    with pytest.raises(ConnectionRefusedError):
        await connect_memory("echo")


async def test_connecting_where_nobody_listens_names_the_name() -> None:
    with pytest.raises(OSError, match="nobody listens: 'memory://nowhere'"):
        await connect_memory("nowhere")
    with pytest.raises(ConnectionLost, match=r"^memory://nowhere: nobody listens$"):
        async with open_transport("memory://nowhere"):
            pass


async def test_a_name_is_taken_until_its_listener_closes() -> None:
    first = listen_memory("once")

    with pytest.raises(OSError, match="cannot listen on memory://once: the name is taken"):
        await open_listeners(["memory://once"])
    await first.aclose()
    second = listen_memory("once")
    await first.aclose()  # closing twice does not free what somebody else has now
    client = await connect_memory("once")
    await second.accept()
    await second.aclose()
    await client.aclose()


async def test_connections_that_nobody_accepted_end_when_the_listener_closes() -> None:
    listener = listen_memory("busy")
    client = await connect_memory("busy")

    with trio.CancelScope() as scope:
        scope.cancel()
        await listener.aclose()

    assert await client.receive() == []
    await client.aclose()


def test_names_belong_to_one_run_of_trio() -> None:
    async def listen_and_die() -> None:
        listen_memory("left over")

    async def connect() -> None:
        with pytest.raises(ConnectionRefusedError):
            await connect_memory("left over")

    trio.run(listen_and_die)
    trio.run(connect)
