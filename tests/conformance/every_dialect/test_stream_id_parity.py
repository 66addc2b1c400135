"""Which side has odd ids and which has even ones: the documents' rule, and what a server of 0.1 and 0.2 learns."""

from __future__ import annotations

import logging
import math
from typing import Any

import pytest
import trio

from rsocket_trio import Connection, Payload, Responder, Setup, open_connection_over, serve_stream
from rsocket_trio.rsocket.dialects import ALL
from tests.conformance import old_frames, raw, resuming
from tests.conformance.old_frames import RS01
from tests.conformance.raw import RS02, RS10
from tests.conformance.resuming import cut

clause = pytest.mark.clause
WIDER = {"dialects": ALL}
either = pytest.mark.parametrize("options", [{}, WIDER], ids=["alone", "with all dialects"])

ODD_REQUEST_0_1 = bytes.fromhex("00000011 0004 0000 00000001 68656c6c6f")
ANSWER_0_1 = bytes.fromhex("00000011 000b 1000 00000001 68656c6c6f")


def echo_that_asks() -> tuple[Responder, list[Connection]]:
    """A responder that echoes, and its connections, for requests in the other direction."""
    responder, connections = Responder(), []

    @responder.request_response
    async def echo(request: Payload) -> Payload:
        return request

    @responder.fire_and_forget
    def note(request: Payload) -> None: ...

    @responder.setup
    def accept(setup: Setup, connection: Connection) -> None:
        connections.append(connection)

    return responder, connections


@clause("ALL-RCT-12", "RS01-SID-04", "QRK-04")
@either
@pytest.mark.parametrize("version", [(0, 0), (0, 1), (0, 2)])
async def test_after_any_setup_of_0_1_an_odd_request_is_answered(
    autojump_clock: object, options: Any, version: tuple[int, int]
) -> None:
    async with raw.bare_server(RS01, old_frames.OldLog().responder, **options) as peer:
        await peer.send(RS01.setup(version=version))
        await peer.send_bytes(ODD_REQUEST_0_1)
        with trio.fail_after(1):
            assert await peer.stream.receive_some() == ANSWER_0_1


@clause("ALL-RCT-12", "RS02-SID-03", "QRK-04")
@either
@pytest.mark.parametrize(
    ("request_", "answer"),
    [
        ("000012 00000001 1100 000002 0161 7061796c6f6164", "000012 00000001 2960 000002 0161 7061796c6f6164"),
        ("000012 00000002 1100 000002 0161 7061796c6f6164", "000012 00000002 2960 000002 0161 7061796c6f6164"),
    ],
    ids=["odd", "even"],
)
async def test_in_0_2_the_first_request_of_either_parity_is_answered(
    autojump_clock: object, options: Any, request_: str, answer: str
) -> None:
    async with raw.bare_server(RS02, raw.Log().responder, **options) as peer:
        await peer.send(RS02.setup())
        await peer.send_bytes(bytes.fromhex(request_))
        with trio.fail_after(1):
            assert await peer.stream.receive_some() == bytes.fromhex(answer)


@clause("ALL-RCT-12", "QRK-04")
@pytest.mark.parametrize("first", [1, 2])
async def test_a_request_shows_the_parity_also_while_its_sender_is_not_let_in(
    autojump_clock: object, first: int
) -> None:
    responder, ours = Responder(), 3 - first

    @responder.request_response
    async def echo(request: Payload) -> Payload:
        return request

    @responder.setup
    async def accept(setup: Setup, connection: Connection) -> None:
        await trio.sleep(1)
        assert await connection.request_response("who are you?") == Payload(b"me")

    async with raw.bare_server(RS01, responder) as peer:
        await peer.send(RS01.setup(), RS01.ask(first, b"hello"))
        await peer.expect(RS01.ask(ours, b"who are you?"))
        await peer.send(RS01.item(ours, b"me", "C"))
        await peer.expect(RS01.item(first, b"hello", "C"))


@clause("ALL-RCT-12", "QRK-04")
@pytest.mark.parametrize("asked", ["REQUEST_FNF", "REQUEST_STREAM", "REQUEST_CHANNEL", "in fragments", "REJECTED"])
@pytest.mark.parametrize("first", [1, 2, 2**32 - 1, 2**32 - 2])
async def test_a_first_request_of_any_kind_shows_the_parity(autojump_clock: object, asked: str, first: int) -> None:
    responder, connections = echo_that_asks()

    @responder.request_stream
    async def nothing(request: Payload) -> Any:
        return
        yield

    frames = {
        "REQUEST_FNF": [RS01.forget(first)],
        "REQUEST_STREAM": [RS01.stream(first, 1)],
        "REQUEST_CHANNEL": [RS01.channel(first, 1)],
        "in fragments": [RS01.ask(first, b"a", "F")],
        "REJECTED": [RS01.sub(first, 1)],  # nobody serves it
    }
    async with raw.server(RS01, responder) as peer, trio.open_nursery() as nursery:
        await peer.send(*frames[asked])
        await raw.settle()
        nursery.start_soon(connections[0].fire_and_forget, b"of the server's")
        while (got := await peer.receive()).type != "REQUEST_FNF":
            pass
        assert got.stream_id == (2 if first % 2 else 1)
        await peer.send(RS01.ask(100 + first % 2, b"again"), RS01.ask(101 - first % 2, b"of the other parity"))
        await peer.expect(RS01.item(100 + first % 2, b"again", "C"))
        await peer.expect_silence()


@clause("ALL-RCT-12", "RS01-SID-04", "QRK-04")
async def test_a_server_of_0_1_takes_the_other_parity_for_its_own_requests(autojump_clock: object) -> None:
    for first, own in ((1, 2), (2, 1)):
        responder, connections = echo_that_asks()
        async with raw.server(RS01, responder) as peer:
            await peer.send(RS01.ask(first, b"x"))
            await peer.expect(RS01.item(first, b"x", "C"))
            for number in (own, own + 2):
                answers: list[Payload] = []

                async def ask(connection: Connection = connections[0], to: list[Payload] = answers) -> None:
                    to.append(await connection.request_response(b"y"))

                async with trio.open_nursery() as nursery:
                    nursery.start_soon(ask)
                    await peer.expect(RS01.ask(number, b"y"))
                    await peer.send(RS01.item(number, b"z", "C"))
                assert answers == [Payload(b"z")]
            await peer.send(RS01.ask(first + 2, b"more"))
            await peer.expect(RS01.item(first + 2, b"more", "C"))


@clause("ALL-RCT-12", "RS02-SID-03", "QRK-04")
async def test_a_server_of_0_2_takes_the_other_parity_for_its_own_requests(autojump_clock: object) -> None:
    for first, own in ((2, 1), (1, 2)):
        responder, connections = echo_that_asks()
        async with raw.server(RS02, responder) as peer:
            await peer.send(raw.ask(first, b"x"))
            await peer.expect(raw.payload(first, b"x", raw.N | raw.C))
            await connections[0].fire_and_forget(b"y")
            await connections[0].fire_and_forget(b"z")
            await peer.expect(raw.forget(own, b"y"), raw.forget(own + 2, b"z"))


@clause("ALL-RCT-12", "RS01-SID-04", "RS02-SID-03")
async def test_a_server_that_asks_first_keeps_to_its_document(
    autojump_clock: object, caplog: pytest.LogCaptureFixture
) -> None:
    responder, connections = echo_that_asks()
    async with raw.server(RS01, responder) as peer:
        await raw.settle()
        await connections[0].fire_and_forget(b"y")
        await peer.expect(RS01.forget(1, b"y"))
        await peer.send(RS01.ask(3, b"odd"), RS01.ask(2, b"even"))
        await peer.expect(RS01.item(2, b"even", "C"))
        assert connections[0].faults.peer_faults == 1
    responder, connections = echo_that_asks()
    async with raw.server(RS02, responder) as peer:
        await raw.settle()
        await connections[0].fire_and_forget(b"y")
        await peer.expect(raw.forget(2, b"y"))
        await peer.send(raw.ask(4, b"even"), raw.ask(1, b"odd"))
        await peer.expect(raw.payload(1, b"odd", raw.N | raw.C))


@clause("ALL-RCT-12", "RS01-UNX-08")
async def test_requests_that_are_ignored_are_logged_once_and_counted(
    autojump_clock: object, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "rsocket_trio")
    responder, connections = echo_that_asks()
    async with raw.server(RS01, responder) as peer:
        await peer.send(RS01.ask(1, b"x"), *(RS01.ask(2 * number, b"lost") for number in range(5)))
        await peer.expect(RS01.item(1, b"x", "C"))
        await raw.settle()
        (record,) = caplog.records
        assert record.levelno == logging.WARNING
        assert "a request on stream 0 is ignored: that is the connection" in record.getMessage()
        await peer.send(RS01.stream(4, 1), RS01.channel(6, 1), RS01.forget(8), RS01.sub(10, 1))
        await peer.expect_silence()
        assert connections[0].faults.peer_faults == connections[0].faults.ignored == 9
        assert len(caplog.records) == 1
    caplog.clear()
    responder, connections = echo_that_asks()
    async with raw.server(RS10, responder) as peer:
        await peer.send(raw.ask(2, b"lost"))
        await peer.expect_alive()
        assert "a request on stream 2 is ignored: the peer's ids are odd" in caplog.text
        assert connections[0].faults.peer_faults == 1


@clause("ALL-RCT-12", "RS01-UNX-08")
async def test_a_request_that_is_ignored_is_logged_whatever_else_its_client_did_wrong(
    autojump_clock: object, caplog: pytest.LogCaptureFixture
) -> None:
    responder, connections = echo_that_asks()

    @responder.request_channel(initial_request_n=1)
    async def sit(channel: Any) -> None:
        await trio.sleep_forever()

    async with raw.server(RS01, responder) as peer:
        await peer.send(RS01.channel(1, 9))
        await peer.expect(RS01.request_n(1, 1))
        await peer.send(*(RS01.channel(1, None, b"x") for _ in range(3)))
        await peer.expect_error(1, 0x204)
        await peer.send(RS01.ask(2, b"lost"), RS01.ask(4, b"lost"))
        await raw.settle()
        assert [record.getMessage().partition("a request on stream ")[2] for record in caplog.records] == [
            "",
            "2 is ignored: the peer's ids are odd; further ones are counted",
        ]
        assert (connections[0].faults.peer_faults, connections[0].faults.ignored) == (4, 2)


@clause("RS01-UNX-09", "RS02-UNX-05", "RS10-UNX-09")
async def test_a_request_on_an_id_in_use_is_logged_and_counted_too(
    autojump_clock: object, caplog: pytest.LogCaptureFixture
) -> None:
    for wire, id_ in ((RS10, 1), (RS02, 1), (RS02, 2)):
        responder, connections = echo_that_asks()

        @responder.request_stream
        async def sit(request: Payload) -> Any:
            await trio.sleep(math.inf)
            yield

        async with raw.server(wire, responder) as peer:
            await peer.send(raw.stream(id_, 1), raw.stream(id_, 1), raw.ask(id_, b"x"))
            await peer.expect_alive()
            assert connections[0].faults.ignored == 2
    texts = [record.getMessage() for record in caplog.records]
    assert all("is ignored: that id is in use" in text for text in texts)
    assert len(texts) == 3


@clause("ALL-RCT-12", "RS02-SID-07", "RS02-RSM-13")
async def test_a_session_that_is_resumed_keeps_the_parity_that_it_learnt(autojump_clock: object) -> None:
    responder, connections = echo_that_asks()
    async with resuming.server(RS02, responder) as harbour:
        peer = await resuming.begin(harbour, RS02)
        await peer.send(raw.ask(2, b"x"))
        await peer.expect(raw.payload(2, b"x", raw.N | raw.C))
        await cut(peer)
        peer = await resuming.come_back(harbour, RS02, got=7, sent=7)
        await peer.send(raw.ask(1, b"odd"), raw.ask(4, b"even"))
        await peer.expect(raw.payload(4, b"even", raw.N | raw.C))
        await connections[0].fire_and_forget(b"y")
        await peer.expect(raw.forget(1, b"y"))


@clause("ALL-RCT-12", "RS01-SID-04", "QRK-04")
async def test_the_quirk_of_clients_changes_nothing_on_a_server(autojump_clock: object) -> None:
    responder, connections = echo_that_asks()
    async with raw.server(RS01, responder, quirks=["client_ids_odd"]) as peer:
        await raw.settle()
        await connections[0].fire_and_forget(b"y")
        await peer.expect(RS01.forget(1, b"y"))
    for first in (1, 2):
        async with raw.server(RS01, responder, quirks=["client_ids_odd"]) as peer:
            await peer.send(RS01.ask(first, b"x"))
            await peer.expect(RS01.item(first, b"x", "C"))


@clause("RS01-SID-04", "QRK-04")
async def test_a_client_can_use_odd_ids_and_takes_even_ones(autojump_clock: object) -> None:
    async with raw.client(RS01, old_frames.OldLog().responder, quirks=["client_ids_odd"]) as (connection, peer):
        await connection.fire_and_forget(b"x")
        await peer.expect(RS01.forget(1, b"x"))
        await peer.send(RS01.ask(1, b"odd"), RS01.ask(2, b"even"))
        await peer.expect(RS01.item(2, b"even", "C"))


@clause("ALL-RCT-12", "QRK-04")
@pytest.mark.parametrize("quirks", [(), ("client_ids_odd",)], ids=["even", "odd"])
async def test_a_client_of_ours_with_either_parity_is_asked_by_its_server(
    autojump_clock: object, quirks: tuple[str, ...]
) -> None:
    responder, connections = echo_that_asks()
    ours, theirs = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_stream, responder, theirs)
        options: Any = {"dialect": RS01.name, "quirks": quirks, "responder": responder}
        async with open_connection_over(ours, **options) as connection:
            assert await connection.request_response(b"there") == Payload(b"there")
            assert await connections[0].request_response(b"and back") == Payload(b"and back")


@clause("ALL-RCT-12", "RS10-SID-03", "RS10-SID-04")
async def test_in_1_0_there_is_nothing_to_learn(autojump_clock: object) -> None:
    responder, connections = echo_that_asks()
    async with raw.server(RS10, responder) as peer:
        await peer.send(raw.ask(2, b"x"), raw.ask(1, b"x"))
        await peer.expect(raw.payload(1, b"x", raw.N | raw.C))
        await connections[0].fire_and_forget(b"y")
        await peer.expect(raw.forget(2, b"y"))
