"""A peer that sends thousands of small frames is read in small portions: a neighbour never waits for all of them."""

from __future__ import annotations

import trio
from trio.testing import MockClock

from rsocket_trio import Payload, Responder
from rsocket_trio.mux.framing import CROWD, Framing24
from rsocket_trio.transports.byte_stream import FIRST_READ_SIZE, MIN_READ_SIZE, READ_SIZE, ByteStreamTransport
from tests.conformance import raw
from tests.connection.pairs import Pair, connected_pair, settle

REQUESTS = 2000


class Turns(trio.abc.Instrument):
    """Counts the steps of tasks between one look at the system's events and the next."""

    def __init__(self) -> None:
        self.most = 0
        self._steps = 0

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self._steps += 1

    def before_io_wait(self, timeout: float) -> None:
        self.most = max(self.most, self._steps)
        self._steps = 0


def responder(begun: list[bytes]) -> Responder:
    responder = Responder()

    @responder.request_response
    async def answer(request: Payload) -> bytes:
        begun.append(request.data)
        await trio.sleep_forever()

    return responder


def requests() -> bytes:
    return raw.prefixed(*[raw.ask(2 * number + 1, b"%d" % number) for number in range(REQUESTS)])


async def pour(pair: Pair, data: bytes) -> None:
    """Have the server read all of this at once."""
    await pair.client_wire._stream.send_all(data)


async def test_requests_in_a_crowd_begin_in_portions_and_in_their_order(autojump_clock: MockClock) -> None:
    begun: list[bytes] = []
    turns = Turns()
    async with connected_pair(responder(begun)) as pair:
        trio.lowlevel.add_instrument(turns)
        await pour(pair, requests())
        await settle()
        trio.lowlevel.remove_instrument(turns)

    frame = len(raw.prefixed(raw.ask(1, b"0")))
    assert sorted(begun, key=int) == [b"%d" % number for number in range(REQUESTS)]
    assert turns.most <= 2 * FIRST_READ_SIZE // frame


async def test_a_connection_that_ends_in_the_middle_of_a_read_begins_nothing_more(autojump_clock: MockClock) -> None:
    begun: list[bytes] = []
    fault = raw.prefixed(raw.error(0, raw.CONNECTION_ERROR, b"enough"))
    async with connected_pair(responder(begun)) as pair:
        half = raw.prefixed(*[raw.ask(2 * number + 1, b"%d" % number) for number in range(CROWD)])
        await pour(pair, half + fault + requests()[len(half) :])
        await settle()
        await pair.server.wait_closed()

    assert len(begun) <= CROWD


class Sizes(trio.abc.ReceiveStream, trio.abc.SendStream):
    """Delivers as much of some bytes as it is asked for, and remembers how much that was."""

    def __init__(self, data: bytes) -> None:
        self.asked: list[int] = []
        self._data = data

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        await trio.lowlevel.checkpoint()
        assert max_bytes is not None
        self.asked.append(max_bytes)
        chunk, self._data = self._data[:max_bytes], self._data[max_bytes:]
        return chunk

    async def send_all(self, data: object) -> None:
        await trio.lowlevel.checkpoint()

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


async def read_all(data: bytes) -> list[int]:
    """Return what a transport asks for, read by read."""
    stream = Sizes(data)
    transport = ByteStreamTransport(trio.StapledStream(stream, stream))
    transport.use_framing(Framing24())
    while await transport.receive():
        pass
    return stream.asked


async def test_reads_become_smaller_in_a_crowd_of_frames() -> None:
    asked = await read_all(raw.prefixed(*[raw.cancel(1)] * 20_000))

    assert asked[0] == FIRST_READ_SIZE
    assert asked[-1] == MIN_READ_SIZE
    assert asked == sorted(asked, reverse=True)


async def test_reads_become_larger_for_large_frames() -> None:
    frame = raw.prefixed(raw.ask(1, bytes(16_384)))
    asked = await read_all(frame * 40)

    assert asked[0] == FIRST_READ_SIZE
    assert READ_SIZE <= asked[-1] <= READ_SIZE + len(frame)
    assert max(asked) <= READ_SIZE + len(frame)


async def test_reads_that_are_not_full_change_nothing() -> None:
    transport_asked = await read_all(raw.prefixed(raw.ask(1, bytes(100))))

    assert set(transport_asked) == {FIRST_READ_SIZE}
