"""Quick init on the wire: who speaks early, what is held, and what comes of a failure."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from rsocket_trio import (
    Connection,
    Limits,
    NegotiationFailed,
    RejectedSetup,
    Setup,
    StreamuxOptions,
    open_connection_over,
)
from tests.conformance.raw_streamux import SERVER_SAYS, SMALL, Log, RawMux, bare_server, initialize, settle

clause = pytest.mark.clause
ID, LENGTH = (0, 29, 14), (1, 24, 16)
ASKING = StreamuxOptions(qr=True, rec_id=5, rec_len=9)
ASKS = initialize((0, 29, 5), (1, 24, 9), request=1)
"""What a client of these options says: a quick init with the widths of ``SMALL``."""
ALLOWS = initialize(ID, LENGTH, allow=1)


@clause("SMX-QI-04", "SMX-QI-03")
async def test_a_quick_client_asks_before_the_server_has_spoken(autojump_clock: object) -> None:
    ours, theirs = trio.testing.memory_stream_pair()
    peer = RawMux(ours, SMALL)
    started = trio.current_time()
    async with (
        open_connection_over(theirs, dialect="streamux/1", streamux=ASKING) as connection,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(connection.request_response, b"hi")
        await peer.expect(ASKS)
        request_id = await peer.expect_request(b"hi")
        assert trio.current_time() == started, "the request waited"
        await peer.send(ALLOWS, SMALL.response(request_id, b"hello"))
        await settle()
    await ours.aclose()


@clause("SMX-QI-04", "SMX-INI-01")
async def test_a_quick_client_that_asks_nothing_says_its_initialize_message(autojump_clock: object) -> None:
    ours, theirs = trio.testing.memory_stream_pair()
    peer = RawMux(ours, SMALL)
    async with open_connection_over(theirs, dialect="streamux/1", streamux=ASKING) as connection:
        await peer.expect(ASKS)
        await peer.expect_silence()
        await peer.send(ALLOWS)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.ping)
            request_id, response, last, data = await peer.receive()
            assert (response, last, data) == (0, 1, b"")
            await peer.send(SMALL.ping_ack(request_id))
    await ours.aclose()


@clause("SMX-QI-04", "SMX-QI-03")
async def test_a_server_answers_what_came_in_one_piece_with_a_quick_init(autojump_clock: object) -> None:
    async with bare_server(Log().responder) as peer:
        await peer.send(ASKS, SMALL.request(1, b"one"), SMALL.ping(2), SMALL.request(3, b"three"))
        await peer.expect(SERVER_SAYS, SMALL.ping_ack(2))
        await peer.expect_in_any_order(SMALL.response(1, b"one"), SMALL.response(3, b"three"))


async def fails_to_ask(says: bytes) -> tuple[str, bytes]:
    """Return what a request of a quick client raises whose server spoke first, and all that the client said."""
    ours, theirs = trio.testing.memory_stream_pair()
    await ours.send_all(says)
    async with open_connection_over(theirs, dialect="streamux/1", streamux=ASKING) as connection:
        await settle()
        with pytest.raises(NegotiationFailed) as caught:
            await connection.request_response(b"late")
    with trio.fail_after(5):
        heard = bytes([byte async for piece in ours.receive_stream for byte in piece])
    return str(caught.value), heard


OUTSIDE = {
    "rec_id of 5 for a quick init: the other side has 6 to 18": initialize((6, 18, 10), (1, 24, 16), allow=1),
    "rec_len of 9 for a quick init: the other side has 10 to 15": initialize(ID, (10, 15, 10), allow=1),
    "qr of one side without qa of the other": initialize(ID, LENGTH),
    "qr is set on both sides": initialize(ID, LENGTH, request=1),
    "version of 0": initialize(ID, LENGTH, version=0, allow=1),
}


@clause("SMX-QI-07", "SMX-NEG-02", "SMX-QI-03", "SMX-QI-05")
@pytest.mark.parametrize(("text", "says"), OUTSIDE.items(), ids=list(OUTSIDE))
async def test_requests_of_a_quick_init_that_fails_fail(autojump_clock: object, text: str, says: bytes) -> None:
    ours, theirs = trio.testing.memory_stream_pair()
    peer = RawMux(ours, SMALL)
    told: list[str] = []
    async with open_connection_over(theirs, dialect="streamux/1", streamux=ASKING) as connection:

        async def ask(data: bytes) -> None:
            with pytest.raises(NegotiationFailed) as caught:
                await connection.request_response(data)
            told.append(str(caught.value))

        async with trio.open_nursery() as nursery:
            for data in (b"a", b"b"):
                nursery.start_soon(ask, data)
                await settle()
            await peer.expect(ASKS)
            answered = await peer.expect_request(b"a")
            await peer.expect_request(b"b")
            # What comes behind a failure means nothing, an answer neither.
            await peer.send(says, SMALL.response(answered, b"answer"))
        await ask(b"c")
        await peer.expect_end()
        assert connection.status == "closed"
    assert len(told) == 3
    assert all(text in one for one in told)
    await ours.aclose()


@clause("SMX-INI-01", "SMX-QI-07")
async def test_a_quick_client_has_its_say_before_it_leaves(autojump_clock: object) -> None:
    error, heard = await fails_to_ask(initialize(ID, LENGTH))
    assert "qr of one side without qa of the other" in error
    # The server is to come to the same conclusion.
    assert heard == ASKS


@clause("SMX-QI-06", "SMX-NEG-02")
@pytest.mark.parametrize("options", [StreamuxOptions(), StreamuxOptions(qa=True, max_id=4, rec_id=4)], ids=str)
async def test_a_server_ignores_all_that_follows_a_quick_init_that_fails(
    autojump_clock: object, options: StreamuxOptions
) -> None:
    log = Log()
    async with bare_server(log.responder, streamux=options) as peer:
        await peer.send(ASKS, SMALL.request(1, b"one"), SMALL.ping(2), SMALL.cancel(3))
        await peer.read(5)
        await peer.expect_end()
    assert log.seen == []


class Gate:
    """A setup handler that waits until it is told."""

    def __init__(self) -> None:
        self.log = Log()
        self.opened = trio.Event()
        self.refuses = False

        @self.log.responder.setup
        async def consider(setup: Setup, connection: Connection) -> None:
            await self.opened.wait()
            if self.refuses:
                raise RejectedSetup("no")


@clause("SMX-QI-10")
@pytest.mark.parametrize("limits", [Limits(held_frames=10), Limits(held_size=10)], ids=["frames", "bytes"])
async def test_early_requests_are_held_up_to_a_bound(autojump_clock: object, limits: Limits) -> None:
    gate = Gate()
    wanted = [SMALL.response(number, b"%02d" % number) for number in range(30)]
    async with bare_server(gate.log.responder, paced=True, limits=limits) as peer, trio.open_nursery() as nursery:
        taken: list[int] = []

        async def say() -> None:
            await peer.send(ASKS)
            for number in range(30):
                await peer.send(SMALL.request(number, b"%02d" % number))
                taken.append(number)

        nursery.start_soon(say)
        await peer.expect(SERVER_SAYS)
        await peer.expect_silence(60)
        assert gate.log.seen == []
        assert 4 <= len(taken) <= 10
        gate.opened.set()
        await peer.expect_in_any_order(*wanted)


@clause("SMX-QI-10")
async def test_held_requests_of_a_client_that_is_refused_never_run(autojump_clock: object) -> None:
    gate = Gate()
    gate.refuses = True
    async with bare_server(gate.log.responder) as peer:
        await peer.send(ASKS, SMALL.request(1, b"one"))
        await peer.expect(SERVER_SAYS)
        await settle()
        gate.opened.set()
        await peer.expect_end()
    assert gate.log.seen == []


@clause("SMX-QI-10")
async def test_a_client_that_allows_a_quick_init_answers_what_comes_with_it(autojump_clock: object) -> None:
    ours, theirs = trio.testing.memory_stream_pair()
    peer = RawMux(ours, SMALL)
    await peer.send(ASKS, SMALL.request(1, b"one"))
    options = StreamuxOptions(qa=True)
    async with open_connection_over(theirs, dialect="streamux/1", responder=Log().responder, streamux=options):
        await peer.expect(SERVER_SAYS, SMALL.response(1, b"one"))
    await ours.aclose()
