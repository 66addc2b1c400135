"""What a client makes of a server's answer to RESUME, and what comes after: 1.0 and 0.2."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from rsocket_trio import (
    ConnectionClosed,
    ConnectionLost,
    Keepalive,
    RejectedResume,
    RejectedSetup,
    Responder,
    RSocketError,
)
from tests.conformance.raw import (
    APPLICATION_ERROR,
    CONNECTION_CLOSE,
    CONNECTION_ERROR,
    KEEPALIVE,
    REJECTED_RESUME,
    REJECTED_SETUP,
    RESUME,
    C,
    N,
    Wire,
    ask,
    both,
    error,
    forget,
    frame,
    keepalive,
    lease,
    parsed,
    payload,
    settle,
)
from tests.conformance.resuming import (
    Harbour,
    Side,
    client,
    cut,
    resume,
    resume_ok,
    with_options,
)

clause = pytest.mark.clause


# A client: answers


@both
@clause("RS10-RSM-13", "RS02-RSM-12", "RS10-RSM-12", "RS10-RSM-09", "RS02-RSM-09")
@pytest.mark.parametrize(
    ("code", "kind"), [(REJECTED_RESUME, RejectedResume), (CONNECTION_ERROR, ConnectionLost), (0x3FF, ConnectionLost)]
)
async def test_a_refusal_ends_it_and_is_not_tried_again(
    autojump_clock: object, wire: Wire, code: int, kind: type[RSocketError], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with client(wire) as side, waiting(side) as outcome:
        peer = await side.asked(got=0)
        await peer.send(error(0, code, b"no way back"))
        await peer.expect_end()
        await settle()
        assert [type(one) for one in outcome] == [kind]
        assert "no way back" in str(outcome[0])
        assert "no way back" in caplog.messages[-1]
        assert side.connection.faults.peer_faults == 0
        assert side.connection.status == "closed"
        await side.harbour.expect_nobody(300)
        with pytest.raises(kind):
            await side.connection.fire_and_forget(b"more")


@both
@pytest.mark.parametrize("heard", [True, False])
async def test_a_refusal_says_whether_the_server_may_never_have_had_the_setup(
    autojump_clock: object, wire: Wire, heard: bool
) -> None:
    async with client(wire) as side, waiting(side) as outcome:
        if heard:
            await side.peer.send(keepalive(respond=False))
            await settle()
        peer = await side.asked(got=0)
        await peer.send(error(0, REJECTED_RESUME, b"unknown resume token"))
        await peer.expect_end()
        await settle()
        [refusal] = outcome
        assert isinstance(refusal, RejectedResume)
        assert str(refusal).startswith("unknown resume token: ")
        assert ("nothing ever came from the server" in str(refusal)) is not heard
        assert "open a new connection" in str(refusal)
        assert refusal.data == b"unknown resume token"
        with pytest.raises(RejectedResume, match="open a new connection"):
            await side.connection.fire_and_forget(b"more")
        outcome.clear()
        del refusal


class waiting:  # noqa: N801
    """A request that waits for its answer for as long as the block; the list gets what became of it."""

    def __init__(self, side: Side) -> None:
        self._connection = side.connection
        self._peer = side.peer
        self.outcome: list[object] = []

    async def __aenter__(self) -> list[object]:
        self._manager = trio.open_nursery()
        self._nursery = await self._manager.__aenter__()
        self._nursery.start_soon(self._ask)
        await self._peer.expect(ask(1, b"q"))
        return self.outcome

    async def __aexit__(self, *error: Any) -> None:
        self._nursery.cancel_scope.cancel()
        await self._manager.__aexit__(*error)

    async def _ask(self) -> None:
        try:
            self.outcome.append((await self._connection.request_response(b"q")).data)
        except RSocketError as error:
            self.outcome.append(error)


@both
@clause("RS10-RSM-24", "RS02-RSM-25", "RS10-RSM-16", "RS02-RSM-15")
@pytest.mark.parametrize("sent", [6, 3, 8, 14, 2**63 - 1])
async def test_an_answer_that_cannot_be_gone_on_from_ends_it(autojump_clock: object, wire: Wire, sent: int) -> None:
    async with client(wire) as side, waiting(side) as outcome:
        await side.connection.fire_and_forget(b"")
        await side.peer.expect(forget(3))
        await side.peer.send(keepalive(position=7))
        await side.peer.expect(keepalive(respond=False))
        peer = await side.asked(got=0, first=7)
        await peer.send(resume_ok(sent))
        await peer.expect_failure(CONNECTION_ERROR)
        await trio.sleep(2)
        assert [type(one) for one in outcome] == [ConnectionLost]
        assert f"{sent}" in str(outcome[0])
        await side.harbour.expect_nobody(300)


@both
@clause("RS10-RSM-12", "RS10-RSM-24")
@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(keepalive(), id="KEEPALIVE"),
        pytest.param(payload(1, b"x", N | C), id="PAYLOAD"),
        pytest.param(frame(0x0E, 0, 0, bytes(7)), id="RESUME_OK cut short"),
        pytest.param(frame(0x0E, 0, 1, bytes(8)), id="RESUME_OK on a stream"),
        pytest.param(frame(RESUME, 0, 0, bytes(22)), id="RESUME"),
        pytest.param(error(1, APPLICATION_ERROR), id="ERROR on a stream"),
        pytest.param(frame(0x2A), id="an unknown type"),
    ],
)
async def test_anything_else_than_an_answer_breaks_the_protocol(
    autojump_clock: object, wire: Wire, answer: bytes
) -> None:
    async with client(wire) as side, waiting(side) as outcome:
        peer = await side.asked(got=0)
        await peer.send(answer)
        await peer.expect_failure(CONNECTION_ERROR)
        await trio.sleep(2)
        assert [type(one) for one in outcome] == [ConnectionLost]
        await side.harbour.expect_nobody(300)


@both
@clause("RS10-RSM-24", "RS02-RSM-26")
async def test_a_client_that_gets_no_answer_tries_again(autojump_clock: object, wire: Wire) -> None:
    options = with_options(answer_seconds=3, first_delay=1, longest_delay=4)
    async with client(wire, options=options) as side, waiting(side) as outcome:
        peer = await side.asked(got=0)
        waited = []
        for _ in range(4):
            began = trio.current_time()
            await peer.expect_silence(2.9)
            await peer.expect_end()
            assert trio.current_time() - began == pytest.approx(3)
            peer = await side.asked(got=0)
            waited.append(round(trio.current_time() - began - 3))
        assert waited == [2, 4, 4, 4]
        await peer.send(resume_ok(7), payload(1, b"answer", N | C))
        await settle()
        assert outcome == [b"answer"]


@both
@clause("RS10-RSM-24", "RS02-RSM-26", "RS02-RSM-08")
@pytest.mark.parametrize("dead", ["no answer", "nobody there", "closed at once"])
async def test_a_client_tries_until_the_time_of_its_session_is_over(
    autojump_clock: object, wire: Wire, dead: str
) -> None:
    options = with_options(session_seconds=40)
    async with client(wire, options=options) as side, waiting(side) as outcome:
        side.harbour.closed = dead == "nobody there"
        await cut(side.peer)

        async def accept() -> None:
            while dead != "nobody there":
                stream = await side.harbour.accept()
                if dead == "closed at once":
                    await trio.aclose_forcefully(stream)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(accept)
            await trio.sleep(39)
            assert outcome == []
            await trio.sleep(2)
            nursery.cancel_scope.cancel()
        assert [type(one) for one in outcome] == [ConnectionLost]
        assert "40 s" in str(outcome[0])
        tries = side.harbour.tries
        assert tries > 5
        await trio.sleep(100)
        assert side.harbour.tries == tries


@both
@clause("RS10-RSM-24", "RS02-RSM-26")
async def test_an_answer_that_breaks_off_is_tried_again(autojump_clock: object, wire: Wire) -> None:
    async with client(wire) as side, waiting(side) as outcome:
        peer = await side.asked(got=0)
        await peer.send_bytes(b"\x00\x00\x0e" + resume_ok(7)[:13])
        peer = await side.resumed(got=0, sent=0)
        await peer.expect(ask(1, b"q"))
        await peer.send(payload(1, b"answer", N | C))
        await settle()
        assert outcome == [b"answer"]


@both
@clause("RS10-RSM-20", "RS10-UNX-18", "RS02-UNX-05")
async def test_what_belongs_to_the_beginning_means_nothing_to_a_client_later(
    autojump_clock: object, wire: Wire
) -> None:
    async with client(wire) as side:
        await side.peer.send(resume_ok(0), resume(wire))
        await side.peer.expect_alive()
        peer = await side.resumed(got=0, sent=0)
        await peer.send(resume_ok(0), resume_ok(99), resume(wire), error(0, REJECTED_RESUME))
        await peer.expect_alive()


# A client: leases, silence, the end


@both
@clause("RS10-RSM-21", "RS02-RSM-20", "RS02-RSM-03")
async def test_a_client_waits_for_a_lease_anew_and_grants_its_own_again(autojump_clock: object, wire: Wire) -> None:
    async with client(wire, Responder(), lease=True) as side:
        await side.peer.expect(lease(2**31 - 1, 2**31 - 1))
        await side.peer.send(lease(60_000, 5))
        await side.connection.fire_and_forget(b"one")
        await side.peer.expect(forget(1, b"one"))
        await trio.sleep(1)
        peer = await side.resumed(got=0, sent=9)
        got = await peer.receive()
        assert got.type == 0x02
        assert side.connection.lease is not None
        assert side.connection.lease.number_of_requests == 0
        with trio.move_on_after(20) as scope:
            await side.connection.fire_and_forget(b"two")
        assert scope.cancelled_caught
        await peer.send(lease(60_000, 1))
        await settle()
        await side.connection.fire_and_forget(b"two")
        while (got := await peer.receive()).type == KEEPALIVE:
            pass
        assert got == parsed(forget(3, b"two"))


@both
@clause("RS10-RSM-21", "RS02-RSM-20")
async def test_a_client_that_serves_nothing_grants_nothing_anew(autojump_clock: object, wire: Wire) -> None:
    async with client(wire, lease=True) as side:
        await trio.sleep(1)
        peer = await side.resumed(got=0, sent=0)
        await peer.expect_silence(10)


@both
@clause("RS10-KA-07", "RS02-KA-06", "RS10-RSM-24")
async def test_a_silent_transport_is_left_for_another(autojump_clock: object, wire: Wire) -> None:
    async with client(wire, keepalive=Keepalive(2, 5)) as side, waiting(side) as outcome:
        old = side.peer
        for _ in range(2):
            await old.expect(keepalive())
        side.peer = await side.harbour.met()
        assert await side.peer.receive() == parsed(resume(wire, side.token))
        await side.peer.send(resume_ok(7))
        await old.expect_end()
        await side.peer.expect_silence(1.9)
        await side.peer.expect(keepalive())
        await side.peer.send(payload(1, b"answer", N | C))
        await settle()
        assert outcome == [b"answer"]


@both
@clause("RS10-RSM-16", "RS02-RSM-15", "RS10-ERR-09")
async def test_a_client_that_leaves_says_that_nobody_comes_back(autojump_clock: object, wire: Wire) -> None:
    harbours: list[Harbour] = []
    async with client(wire) as side:
        harbours.append(side.harbour)
        peer = side.peer
        side.peer = await side.harbour.peer()  # not that of the client, which is still to be read from
    assert (await peer.receive()).error_code == CONNECTION_CLOSE
    await peer.expect_end()
    assert harbours[0].tries == 2


@both
@clause("RS10-SETUP-07", "RS02-SETUP-07", "RS10-RSM-01")
async def test_a_client_hears_that_a_server_does_not_resume(autojump_clock: object, wire: Wire) -> None:
    async with client(wire) as side:
        await side.peer.send(error(0, REJECTED_SETUP, b"resumption is not offered here"))
        with pytest.raises(RejectedSetup, match="not offered"):
            await side.connection.request_response(b"x")
        await side.harbour.expect_nobody(100)


@both
@clause("RS10-RSM-16", "RS10-ERR-09")
async def test_a_server_that_announced_its_end_is_not_asked_to_resume(autojump_clock: object, wire: Wire) -> None:
    async with client(wire) as side, waiting(side) as outcome:
        await side.peer.send(error(0, CONNECTION_CLOSE))
        await settle()
        await cut(side.peer)
        await side.harbour.expect_nobody(100)
        assert [type(one) for one in outcome] == [ConnectionClosed]
