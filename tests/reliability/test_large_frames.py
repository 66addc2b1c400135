"""What a large frame costs while it comes, and that what nobody reads of a large error costs nothing."""

from __future__ import annotations

import attrs
import pytest
import trio
from trio.testing import MockClock

from rsocket_trio import ApplicationError, Payload, Responder
from rsocket_trio.errors import DATA_LIMIT, stream_error
from rsocket_trio.mux.framing import AHEAD, SMALL, Framing24
from rsocket_trio.rsocket.dialect import DIALECTS
from rsocket_trio.rsocket.frames import ErrorFrame
from tests.conformance import raw
from tests.connection.pairs import connected_pair, settle
from tests.memory import traced

MIB = 1024 * 1024
READ = 65536


@pytest.mark.parametrize("size", [3 * SMALL, 3 * MIB, 16 * MIB - 1])
def test_nobody_holds_much_more_than_was_sent(size: int) -> None:
    framing, chunk = Framing24(), bytes(READ)
    with traced() as memory:
        framing.feed(size.to_bytes(3, "big"))
        for sent in range(READ, size, READ):
            framing.feed(chunk)
            held = memory.now()
            assert held <= AHEAD * sent + 2 * READ


@pytest.mark.parametrize("name", DIALECTS)
def test_an_error_is_cut_before_it_is_read(name: str) -> None:
    codec = DIALECTS[name].codec
    error = ErrorFrame(1, 0x201, b"x" * (DATA_LIMIT + 1000))
    encoded = codec.encode(error)

    short = codec.shortened(encoded, DATA_LIMIT)

    assert len(short) < len(encoded)
    assert codec.decode(short) == attrs.evolve(error, data=b"x" * DATA_LIMIT)
    assert codec.decode(encoded) == error


def test_an_error_with_metadata_stays_whole_for_its_lengths_to_fit() -> None:
    codec = DIALECTS["reactivesocket/0.2"].codec
    error = ErrorFrame(1, 0x201, b"x" * 100_000, b"metadata")

    whole = codec.decode(codec.shortened(codec.encode(error), DATA_LIMIT))
    assert whole == error
    assert isinstance(whole, ErrorFrame)
    assert stream_error(whole.code, whole.data).data == b"x" * DATA_LIMIT


async def test_of_a_large_error_its_first_part_is_kept(autojump_clock: MockClock) -> None:
    responder = Responder()

    @responder.request_response
    async def never(request: Payload) -> bytes:
        await trio.sleep_forever()

    async with connected_pair(responder) as pair:

        async def fail() -> None:
            await settle()
            text = b"y" * (4 * DATA_LIMIT)
            await pair.server_wire._stream.send_all(raw.prefixed(raw.error(1, raw.APPLICATION_ERROR, text)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail)
            with pytest.raises(ApplicationError) as caught:
                await pair.client.request_response(b"?")

    assert caught.value.data == b"y" * DATA_LIMIT
