"""An initialize message that does not come, or not all of it: the end, silence, and bytes that drip."""

from __future__ import annotations

import logging

import pytest
import trio
import trio.testing

from rsocket_trio import (
    ConnectionLost,
    Limits,
    NegotiationFailed,
    open_connection_over,
)
from tests.conformance.raw_streamux import (
    CLIENT_SAYS,
    SERVER_SAYS,
    SMALL,
    Log,
    bare_server,
    fails_to_open,
    settle,
)

clause = pytest.mark.clause


@clause("SMX-NEG-02")
@pytest.mark.parametrize("cut", range(1, 5))
async def test_the_end_inside_the_initialize_message_is_told_to_a_client(autojump_clock: object, cut: int) -> None:
    error, heard, took = await fails_to_open(SMALL.says[:cut], close=True)
    assert isinstance(error, NegotiationFailed)
    assert f"after {cut} of the 5 bytes of its initialize message" in str(error)
    assert heard == CLIENT_SAYS
    assert took < 5


@clause("SMX-NEG-02")
async def test_a_server_that_closes_without_a_word_is_lost(autojump_clock: object) -> None:
    error, _, took = await fails_to_open(b"", close=True)
    assert isinstance(error, ConnectionLost)
    assert took < 5


@clause("SMX-NEG-02")
@pytest.mark.parametrize("cut", range(5))
async def test_the_end_inside_the_initialize_message_ends_a_server(
    autojump_clock: object, caplog: pytest.LogCaptureFixture, cut: int
) -> None:
    caplog.set_level(logging.INFO, "rsocket_trio")
    log = Log()
    async with bare_server(log.responder) as peer:
        await peer.expect(SERVER_SAYS)
        await peer.send(SMALL.says[:cut])
        await settle()
        await peer.say_no_more()
        await peer.expect_end()
    assert log.seen == []
    assert not cut or f"after {cut} of the 5 bytes of its initialize message" in caplog.text


@clause("SMX-NEG-02")
@pytest.mark.parametrize("cut", range(5))
async def test_who_is_silent_for_the_setup_timeout_is_left(
    autojump_clock: object, caplog: pytest.LogCaptureFixture, cut: int
) -> None:
    error, heard, took = await fails_to_open(SMALL.says[:cut])
    assert isinstance(error, ConnectionLost)
    assert "no initialize message came for 10 s" in str(error)
    assert heard == CLIENT_SAYS
    assert 10 <= took <= 11
    caplog.clear()
    async with bare_server(Log().responder) as peer:
        await peer.expect(SERVER_SAYS)
        await peer.send(SMALL.says[:cut])
        await peer.expect_silence(9.5)
        await peer.expect_end()
    assert "no initialize message came in time" in caplog.text


@clause("SMX-NEG-02")
async def test_bytes_that_drip_do_not_move_the_setup_timeout(autojump_clock: object) -> None:
    limits = Limits(setup_timeout=3)
    async with bare_server(Log().responder, limits=limits) as peer:
        await peer.expect(SERVER_SAYS)
        for byte in SMALL.says[:3]:
            await peer.send(bytes([byte]))
            await peer.expect_silence(0.9)
        await peer.expect_end()
    ours, theirs = trio.testing.memory_stream_pair()
    started = trio.current_time()

    async def drip() -> None:
        for byte in SMALL.says[:3]:
            await ours.send_all(bytes([byte]))
            await trio.sleep(0.9)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(drip)
        with pytest.raises(ConnectionLost, match="no initialize message came for 3 s"):
            async with open_connection_over(theirs, dialect="streamux/1", limits=limits):
                pytest.fail("the block began")
        assert 3 <= trio.current_time() - started <= 4
    await ours.aclose()
