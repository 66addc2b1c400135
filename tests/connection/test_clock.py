"""One task waits for whatever is due next, however deadlines move."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from rsocket_trio import Keepalive, Limits, Responder
from tests.conformance import raw
from tests.each_row import each_row


async def test_a_lifetime_that_the_setup_brings_nearer_counts_at_once(autojump_clock: MockClock) -> None:
    async with raw.bare_server(raw.RS10, Responder(), limits=Limits(setup_timeout=60)) as peer:
        await trio.sleep(10)
        await peer.send(raw.setup(lifetime=2_000))
        started = trio.current_time()
        await peer.expect_error(0, raw.CONNECTION_ERROR)
        assert trio.current_time() - started == pytest.approx(2)


@each_row("pieces", [1, 100])
async def test_a_setup_in_pieces_over_five_seconds_is_honest(pieces: int, autojump_clock: MockClock) -> None:
    async with raw.bare_server(raw.RS10, Responder()) as peer:
        setup = raw.prefixed(raw.setup(data=bytes(1000)))
        step = len(setup) // pieces + 1
        for start in range(0, len(setup), step):
            await peer.send_bytes(setup[start : start + step])
            await trio.sleep(5 / pieces)
        await peer.expect_alive()


async def test_a_setup_that_is_not_whole_in_time_is_closed(autojump_clock: MockClock) -> None:
    async with raw.bare_server(raw.RS10, Responder()) as peer:
        started = trio.current_time()
        for byte in raw.prefixed(raw.setup())[:15]:
            await peer.send_bytes(bytes([byte]))
            await trio.sleep(0.6)
        with trio.fail_after(5):
            assert await peer.stream.receive_some() == b""
        assert trio.current_time() - started == pytest.approx(10)


async def test_half_a_frame_is_no_sign_of_life(autojump_clock: MockClock) -> None:
    async with raw.bare_server(raw.RS10, Responder()) as peer:
        await peer.send(raw.setup(lifetime=3000))
        for byte in (b"\x00", b"\x00", b"\x09"):
            await trio.sleep(0.9)
            await peer.send_bytes(byte)
        await peer.expect_silence(0.29)
        with trio.fail_after(0.02):
            await peer.expect_failure(raw.CONNECTION_ERROR)


def test_an_interval_above_the_lifetime_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^Keepalive: an interval of 10 s is above the max_lifetime of 2.5 s$"):
        Keepalive(interval=10, max_lifetime=2.5)
    assert Keepalive(interval=2, max_lifetime=2).interval == 2


@each_row(("interval", "max_lifetime"), [(0, 1), (1, 0), (-1, 1), (2**31, 1), (1, float("inf"))])
def test_terms_that_31_bits_cannot_say_are_refused(interval: float, max_lifetime: float) -> None:
    with pytest.raises(ValueError, match="must be"):
        Keepalive(interval=interval, max_lifetime=max_lifetime)
