"""Options of ours for peers of ReactiveSocket 0.0 and 0.1, and what our API says and sees of those dialects."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import trio
import trio.testing

from rsocket_trio import (
    Channel,
    Connection,
    ConnectionLost,
    Lease,
    Limits,
    MetadataPush,
    Payload,
    Responder,
    Setup,
    current_connection,
)
from tests.conformance.peers import responder
from tests.conformance.scripted import at_client, at_server
from tests.connection.pairs import connected_pair, settle
from tests.each_row import each_row
from tests.serving import running_server

clause = pytest.mark.clause
RS00, RS01, RS02 = "reactivesocket/0.0", "reactivesocket/0.1", "reactivesocket/0.2"
BELOW = 2**24 - 2
"""Bytes of the largest payload that is promised to stay whole."""
MIMES = "18 6170706c69636174696f6e2f6f637465742d73747265616d" * 2


class Log:
    """A responder of every interaction, and what its handlers saw. Its connections ask for the tests."""

    def __init__(self) -> None:
        self.seen: list[object] = []
        self.connections: list[Connection] = []
        self.responder = responder()

        @self.responder.setup
        def accept(setup: Setup, connection: Connection) -> None:
            self.connections.append(connection)

        @self.responder.fire_and_forget
        def note(request: Payload) -> None:
            self.seen.append(request.data)

        @self.responder.metadata_push
        def pushed(metadata: bytes) -> None:
            self.seen.append(metadata)


# Quirks of clients, which a server takes


def leasing() -> Responder:
    made = responder()

    @made.lease
    async def policy(setup: object) -> AsyncIterator[Lease]:
        yield Lease(1, 1)

    return made


LOW = f"> hex 0001 0020 00000000 00000001 00004e20 00015f90 {MIMES}"


@clause("RS01-SETUP-03", "QRK-06")
@each_row(
    ("quirks", "grants", "steps"),
    [
        (["low_setup_flags"], True, "< lease 1000 1"),
        ([], True, "alive"),
        (["low_setup_flags"], False, "failed 0x2"),
    ],
)
async def test_the_lease_flag_can_be_read_one_byte_too_low(
    autojump_clock: object, quirks: list[str], grants: bool, steps: str
) -> None:
    async with at_server(RS01, leasing() if grants else None, quirks=quirks) as script:
        await script.play(f"{LOW}\n{steps}")


OPEN = '> setup\n> hex 0008 0000 00000002 00000009 6869\n< item 2 "hi"\n'


@clause("RS01-CH-01", "RS01-CH-02", "QRK-07")
@each_row(
    "steps",
    [
        '> hex 0008 0000 00000002 00000000 6261636b\n< item 2 "back"',
        '> hex 0008 1000 00000002 00000000 6261636b\n<= 2 "back"',
        "> hex 0008 1000 00000002 00000000\n< complete 2",
        "> hex 0008 1000 00000002 00000000 00000000\n<= 2 h00000000",
        '> hex 0008 1000 00000002 616263\n<= 2 "abc"',
        '> hex 0008 0000 00000002\n< item 2 ""',
        "> hex 0008 5000 00000002 000000\nalive",
    ],
)
async def test_a_channel_can_have_its_number_always_and_a_short_body_has_none(
    autojump_clock: object, steps: str
) -> None:
    async with at_server(RS01, quirks=["channel_slot"]) as script:
        await script.play(f"{OPEN}{steps}\nalive")


@clause("RS01-UNX-13", "RS01-MP-01", "QRK-17")
@each_row("stream_id", [0, 2, 3, 2**32 - 1])
async def test_metadata_pushed_with_any_stream_id_is_taken_by_name(autojump_clock: object, stream_id: int) -> None:
    log = Log()
    steps = f'> stream 2 1 ""\n< item 2 "0"\n> push_on {stream_id} "one"\n> request_n 2 1\n< item 2 "1"'
    async with at_server(RS01, log.responder, quirks=["metadata_push_on_streams"]) as script:
        await script.play(f"> setup\n{steps}")
    async with at_client(RS01, log.responder, quirks=["metadata_push_on_streams"]) as (_, script):
        await script.play(f'< client_setup\n> push_on {stream_id} "two"')
    assert log.seen == [b"one", b"two"]


# Quirks of servers, which a client takes


@clause("RS01-SETUP-10", "RS01-SETUP-03", "QRK-02", "QRK-06")
@each_row(
    ("options", "flags"),
    [({}, 0), ({"lease": True}, 0x2020), ({"strict": True}, 0x1010), ({"lease": True, "strict": True}, 0x3030)],
)
async def test_a_client_can_say_version_0_0_and_its_flags_where_java_reads_them_too(
    autojump_clock: object, options: Any, flags: int
) -> None:
    for quirks, written in (((), flags & 0xFF00), (("low_setup_flags", "version_0_0"), flags)):
        version = 0 if quirks else 1
        async with at_client(RS01, quirks=quirks, **options) as (_, script):
            await script.play(f"< hex 0001 {written:04x} 00000000 {version:08x} ..")


@clause("RS01-HDR-08", "RS01-STR-01", "RS01-SUB-01", "RS01-FRAG-02", "QRK-15")
async def test_a_request_with_a_number_says_so_by_the_flag_that_go_needs_in_each_fragment(
    autojump_clock: object,
) -> None:
    async with at_client(RS01, fragment_size=64) as (connection, script):
        async with connection.request_stream(bytes(60), initial_request_n=5):
            await script.play(f"< client_setup\n< hex 0006 2800 00000002 00000005 {'00' * 52}")
            await script.play(f"< hex 0006 0800 00000002 00000005 {'00' * 8}")
        async with connection.request_subscription(Payload(b"s", b"m"), initial_request_n=5):
            await script.play("< cancel 2\n< hex 0007 4800 00000004 00000005 00000005 6d 73")


@clause("RS01-KA-06", "QRK-08")
@each_row("data", ["", "something else"])
async def test_a_keepalive_that_echoes_nothing_is_an_answer(autojump_clock: object, data: str) -> None:
    async with at_client(RS01) as (connection, script), trio.open_nursery() as nursery:
        nursery.start_soon(connection.ping)
        await script.play(f'mute\n< client_setup\n< keepalive ""\n> keepalive_answer "{data}"')


@clause("RS01-KA-04")
async def test_a_server_asks_for_life_when_its_application_does(autojump_clock: object) -> None:
    made = Responder()

    @made.request_response
    async def ping(request: Payload) -> bytes:
        return b"%.1f" % await current_connection().ping()

    async with at_server(RS01, made) as script:
        await script.play('mute\n> setup\n> ask 2 ""\n< keepalive ""\nsilent 0.5\n> keepalive_answer ""\n<= 2 "0.5"')


# Fragments: peers that announce 0.0 or 0.2 join none


def answering(size: int) -> Responder:
    made = Responder()

    @made.request_response
    async def respond(request: Payload) -> bytes:
        return bytes(size)

    return made


@clause("RS01-FRAG-01", "DET-05", "QRK-18")
@each_row("version", ["00000000", "00000002"])
async def test_a_server_answers_a_client_that_joins_nothing_with_whole_payloads(
    autojump_clock: object, version: str
) -> None:
    setup = f"> hex 0001 0000 00000000 {version} 00004e20 00015f90 {MIMES}\n"
    async with at_server(RS01, answering(BELOW)) as script:
        await script.play(f'{setup}> ask 2 "x"\n< last 2 h00*{BELOW}')
    async with at_server(RS01, answering(1000), fragment_size=1000) as script:
        await script.play(f'{setup}> ask 2 "x"\n< item_more 2 h00*992\n< last 2 h00*8')
    async with at_server(RS01, answering(65536)) as script:
        await script.play('> setup\n> ask 2 "x"\n< item_more 2 h00*65528\n< last 2 h00*8')


@clause("RS01-FRAG-01", "QRK-02", "QRK-18")
async def test_a_client_that_says_0_0_cuts_nothing_unless_it_is_told_to(autojump_clock: object) -> None:
    async with at_client(RS01, quirks=["version_0_0"]) as (connection, script), trio.open_nursery() as nursery:
        nursery.start_soon(connection.fire_and_forget, bytes(BELOW))
        await script.play(f"< hex 0001 ..\n< forget 2 h00*{BELOW}")
        async with connection.request_channel(b"", initial_request_n=1) as channel:
            await script.play('< channel 4 1 ""\n> request_n 4 1')
            await channel.send(bytes(BELOW))
            await script.play(f"< channel_item 4 h00*{BELOW}")
    given: tuple[dict[str, Any], ...] = ({}, {"quirks": ["version_0_0"], "fragment_size": 65536})
    for options in given:
        async with at_client(RS01, **options) as (connection, script):
            await connection.fire_and_forget(bytes(65536))
            await script.play("< hex 0001 ..\n< forget_more 2 h00*65528\n< forget 2 h00*8")


@clause("RS01-FRAG-05", "RS01-ERR-07", "ALL-RCT-14")
async def test_what_is_too_large_or_too_much_opens_nothing(autojump_clock: object) -> None:
    log = Log()
    async with at_server(RS01, log.responder, limits=Limits(payload_size=300, streams=1)) as script:
        await script.play("""
            > setup
            times 4 ask_more 2 "x"*99
            < error 2 0x204
            > ask_more 2 "rest" ; ask 2 "rest"
            times 5 forget_more 4 "x"*99
            > forget 4 "rest"
            > ask 6 "silent" ; forget 8 "rejected" ; ask_more 10 "one"
            < error 10 0x202
            > cancel 6 ; ask_more 10 "two" ; ask 10 "three"
            alive
        """)
    assert log.seen == []


@clause("RS01-FRAG-05")
async def test_an_answer_too_large_in_fragments_is_cancelled(autojump_clock: object) -> None:
    got: list[object] = []
    async with (
        at_client(RS00, limits=Limits(payload_size=300)) as (connection, script),
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(asked, connection, got)
        await script.play('< client_setup\n< ask 2 "q"\ntimes 4 item_more 2 "x"*99\n> last 2 "rest"\n< cancel 2')
    assert "300" in str(got[0])


async def asked(connection: Connection, into: list[object]) -> None:
    """What a request/response of the client's comes to."""
    try:
        into.append(await connection.request_response(b"q"))
    except Exception as error:
        into.append(error)


# Channels


ZEROS = "h00000000"


@clause("RS01-CH-01", "RS01-CH-02", "RS01-FRAG-03", "RS01-RSP-03", "QRK-07", "QRK-16")
@each_row(
    "steps",
    [
        f"> channel_item 2 {ZEROS}\n< item 2 {ZEROS}",
        f"> channel_complete 2 0 {ZEROS}\n<= 2 {ZEROS}",
        f'> channel_last_described 2 "" {ZEROS}\n<= 2 "" {ZEROS}',
        "> channel_last 2 h000000\n<= 2 h000000",
        f'> channel_item_more 2 "ab" ; channel_last 2 {ZEROS}\n<= 2 h616200000000',
        f"> channel_last 2 {ZEROS}\n< complete 2",  # which is how Java 0.2.2 completes
        "> complete 2\n< complete 2",  # and 0.5.2
        '> last 2 "x"\n> channel_item 2 "b"\n< item 2 "b"',
        '> item 2 ""\n> channel_item 2 "b"\n< item 2 "b"',
        '> channel_item_more 2 "b" ; complete 2 ; channel_item 2 "c"\n< item 2 "bc"',
    ],
)
async def test_four_zero_bytes_are_an_item_wherever_they_can_be_one_and_an_empty_response_completes(
    autojump_clock: object, steps: str
) -> None:
    async with at_server(RS01) as script:
        await script.play(f'> setup\n> channel 2 9 "a"\n< item 2 "a"\n{steps}\nalive')
    async with at_client(RS01, responder()) as (_, script):
        steps = steps.replace(" 2 ", " 1 ").replace("complete 2", "complete 1")
        await script.play(f'< client_setup\n> channel 1 9 "a"\n< item 1 "a"\n{steps}\nalive')


class Completing:
    """A responder whose channel sends an item, completes, and reads to the end in a way of the test's."""

    def __init__(self, read: Callable[[Channel], Awaitable[list[bytes]]]) -> None:
        self.responder = responder()
        self.came: list[bytes] = []
        self.ended = 0

        @self.responder.request_channel("completing")
        async def converse(channel: Channel) -> None:
            await channel.send(b"last")
            await channel.send_eof()
            self.came += await read(channel)
            self.ended += 1


async def read_items(channel: Channel) -> list[bytes]:
    return [item.data async for item in channel]


async def read_batches(channel: Channel) -> list[bytes]:
    came: list[bytes] = []
    while batch := await channel.receive_batch():
        came += [item.data for item in batch]
    return came


@clause("RS02-SEQ-04", "RS01-SEQ-12")
@each_row("read", [read_items, read_batches])
@each_row("dialect", [RS01, RS02])
async def test_a_handler_that_completed_its_channel_and_reads_on_comes_to_the_end(
    autojump_clock: object, dialect: str, read: Callable[[Channel], Awaitable[list[bytes]]]
) -> None:
    completing = Completing(read)
    limits = Limits(streams=2)
    async with connected_pair(completing.responder, dialect=dialect, server_limits=limits) as pair:
        for number in range(20):
            async with pair.client.request_channel(b"c", route="completing") as channel:
                assert await read_items(channel) == [b"last"]
            await settle()
            assert completing.ended == number + 1
        assert completing.came == []
        assert pair.server._engine.session.open_streams() == []
        assert pair.server._engine.session.receiver.detached == 0


# Whose ids are odd


@clause("ALL-RCT-12", "RS01-SID-04", "RS02-SID-03", "QRK-04")
@each_row("first", [1, 2, 2**31 - 1, 2**31 - 2])
@each_row("dialect", [RS01, RS02])
async def test_a_server_takes_the_other_parity_for_its_own_requests(
    autojump_clock: object, dialect: str, first: int
) -> None:
    log, own = Log(), 2 if first % 2 else 1
    async with at_server(dialect, log.responder) as script:
        await script.play(f'> setup\n> ask {first} "x"\n<= {first} "x"')
        for number in (own, own + 2):
            await log.connections[0].fire_and_forget(b"y")
            frame = "0005 0000" if dialect == RS01 else "1400"
            at = f"{number:08x}"
            await script.play(f"< hex {frame} {at} 79" if dialect == RS01 else f"< hex {at} {frame} 79")
        await script.play(f'> ask {3 - own} "z" ; ask {own} "lost"\n<= {3 - own} "z"')


@clause("ALL-RCT-12", "RS01-SID-04", "RS02-SID-03")
async def test_a_server_that_asks_first_keeps_to_its_document(
    autojump_clock: object, caplog: pytest.LogCaptureFixture
) -> None:
    log = Log()
    async with at_server(RS01, log.responder) as script:
        await script.play("> setup")
        await log.connections[0].fire_and_forget(b"y")
        await script.play('< forget 1 "y"\n> ask 3 "odd" ; ask 2 "even" ; ask 5 "odd"\n<= 2 "even"')
        assert log.connections[0].faults.peer_faults == 2
    assert [record.getMessage().partition("a request on ")[2] for record in caplog.records] == [
        "stream 3 is ignored: the peer's ids are even; further faults are counted"
    ]


# Setting up


@clause("RS01-CON-12", "RS01-CON-18", "RS00-CON-06", "RS00-CON-12")
@each_row("dialect", [RS00, RS01])
async def test_with_leases_a_server_waits_for_one_and_in_0_0_only_once_there_was_one(
    autojump_clock: object, dialect: str
) -> None:
    made, connections = leasing(), []

    @made.setup
    def accept(setup: Setup, connection: Connection) -> None:
        connections.append(connection)

    second = 10**9 if dialect == RS00 else 1000
    async with at_server(dialect, made) as script, trio.open_nursery() as nursery:
        await script.play(f"> setup_leased\n< lease {second} 1")
        nursery.start_soon(connections[0].fire_and_forget, b"first")
        if dialect == RS00:
            await script.play('< forget 1 "first"')
            nursery.start_soon(connections[0].fire_and_forget, b"second")
            await script.play('< forget 3 "second"')
        else:
            await script.play(f'silent 50\n> lease {second} 1\n< forget 1 "first"')
        await script.play(f"> lease {second} 0")
        nursery.start_soon(connections[0].fire_and_forget, b"last")
        await script.play(f'silent 20\n> lease {second} 1\n< forget {3 if dialect == RS01 else 5} "last"')


@clause("RS00-EXT-01", "RS00-EXT-02", "RS01-EXT-01")
@each_row(("dialect", "flags"), [(RS00, "00"), (RS00, "80"), (RS00, "40"), (RS01, "8000")])
async def test_an_extension_that_is_known_is_handed_over_as_it_is(
    autojump_clock: object, dialect: str, flags: str
) -> None:
    seen: list[object] = []
    made = responder()

    @made.extension(0x4AFEBABE)
    def known(stream_id: int, body: bytes) -> None:
        seen.append((stream_id, body))

    head = f"00 {flags} ffff" if dialect == RS00 else f"ffff {flags}"
    async with at_server(dialect, made) as script:
        await script.play(f"> setup\n> hex {head} 4afebabe 00626f6479 ; hex {head} 4afebabe\nalive")
    assert seen == [(0, b"\0body"), (0, b"")]


# Metadata on streams of 0.0


@clause("RS00-MP-02", "RS00-MP-03", "RS00-MP-04", "RS00-MD-04")
@each_row("kind", ["stream", "subscription"])
async def test_pushed_metadata_comes_in_order_with_the_items_and_takes_no_credit(
    autojump_clock: object, kind: str
) -> None:
    async with at_client(RS00, limits=Limits(pending_handlers=3)) as (connection, script):
        ask = getattr(connection, f"request_{kind}")
        async with ask(b"s", initial_request_n=2, refill=False, pushes=True) as items:
            await script.play('< client_setup\n< hex 00 ..\n> push_on 2 "0" ; item 2 "1" ; push_on 2 ""')
            assert [await anext(items) for _ in range(3)] == [MetadataPush(b"0"), Payload(b"1"), MetadataPush(b"")]
            await script.play('> hex 00 40 0031 0000000000000002 a5 000005 33\n> item 2 "2"')
            assert [await anext(items) for _ in range(2)] == [MetadataPush(b"3", 0xA5), Payload(b"2")]
            await script.play("times 5 push_on 2 h61\n> complete 2")
            # What a slow reader leaves beyond its limit is dropped.
            assert len([one async for one in items]) == 3
        assert connection.faults.dropped == 2


# Lengths on messages

SETUP = bytes.fromhex("00000024 0001 0000 00000000 00000000 00004e20 00015f90 05 7574662d38 05 7574662d38")


@clause("RS01-HDR-01", "QRK-14")
async def test_a_client_keeps_the_length_by_name(autojump_clock: object) -> None:
    got: list[object] = []
    async with at_client(RS01, messages=True, quirks=["length_on_messages"]) as (connection, script):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(asked, connection, got)
            await script.play("< hex 000000?? 0001 0000 00000000 00000001 ..\n< hex 0000000d 0004 0000 00000002 71")
            await script.play("> hex 0000000d 000b 1000 00000002 61")
        assert got == [Payload(b"a")]
        await script.play('> last 2 "no length"')
        with pytest.raises(
            ConnectionLost, match="message of 17 bytes whose length says 724992: a message is one frame"
        ):
            await connection.request_response(b"?")


# First bytes


async def test_noise_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async with running_server(responder()) as uri:
        for number in range(5):
            stream = await trio.open_tcp_stream("127.0.0.1", int(uri.rpartition(":")[2]))
            await stream.send_all(b"noise of %d bytes" % number)
            assert await stream.receive_some() == b""
            await stream.aclose()
    warnings = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
    assert len(warnings) == 1
    assert b"noise of 0".hex() in warnings[0]
