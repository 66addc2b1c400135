"""A client that is told a peer's name says what that peer understands; what its caller gives wins."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from rsocket_trio import (
    Connection,
    Keepalive,
    LocalProtocolError,
    Payload,
    Responder,
    connect_forever,
    open_connection,
    open_connection_over,
)
from rsocket_trio.transports.memory import memory_pair
from tests.serving import running_server

OLD = ["java-0.2.2", "java-0.5.2", "js-3", "js-1", "go-2016", "python-2017"]
"""The names of those that speak 0.1."""
PYTHON, KOTLIN = "rsocket-py/fc7afed", "rsocket-kotlin/0.20"
NAMES = [*OLD, PYTHON, KOTLIN]
NOWHERE = "memory://nobody-listens-here"
DEFAULT_MIMES = "27" + b"message/x.rsocket.composite-metadata.v0".hex() + "18" + b"application/octet-stream".hex()
UTF8 = "05 7574662d38 05 7574662d38"
# Behind its length: type, flags, stream 0, version, keepalive and lifetime in milliseconds, MIME types.
SETUPS = {
    "java-0.2.2": "0001 0000 00000000 0000 0000 00004e20 00015f90" + DEFAULT_MIMES,
    "java-0.5.2": "0001 0000 00000000 0000 0001 00004e20 00015f90" + DEFAULT_MIMES,
    "js-3": "0001 0000 00000000 0000 0001 00004e20 00015f90" + UTF8,
    "js-1": "0001 0000 00000000 0000 0001 0007a120 000dbba0" + UTF8,
    "go-2016": "0001 0000 00000000 0000 0000 00004e20 00015f90" + DEFAULT_MIMES,
    "python-2017": "0001 0000 00000000 0000 0001 00004e20 00015f90" + DEFAULT_MIMES,
}
# The same in the layout that 0.2 and 1.0 share: stream 0, type and flags, version, keepalive and lifetime, MIME types.
SETUPS_24 = {
    PYTHON: "00000000 0400 0000 0002 00004e20 00015f90" + DEFAULT_MIMES,
    KOTLIN: "00000000 0400 0001 0000 00004e20 00015f90" + DEFAULT_MIMES,
}
FIRST_IDS = {"java-0.2.2": 2, "java-0.5.2": 1, "js-3": 1, "js-1": 2, "go-2016": 1, "python-2017": 2}
KEEP_LENGTHS = ["java-0.2.2", "js-3", "js-1"]


class Heard:
    """The frames that a client of ours wrote, without their lengths of ``size`` bytes, of which ``counted`` count."""

    def __init__(self, stream: trio.abc.ReceiveStream, size: int = 4, counted: int = 4) -> None:
        self._stream = stream
        self._size = size
        self._counted = counted
        self._data = bytearray()

    async def next(self) -> bytes:
        return await self._take(int.from_bytes(await self._take(self._size), "big") - self._counted)

    async def _take(self, size: int) -> bytes:
        while len(self._data) < size:
            self._data += await self._stream.receive_some(2**20)
        taken = bytes(self._data[:size])
        del self._data[:size]
        return taken


@asynccontextmanager
async def asking(**terms: Any) -> AsyncIterator[tuple[Connection, Heard]]:
    """A client of ours on a stream of bytes, and what it says."""
    ours, theirs = trio.testing.memory_stream_pair()
    async with open_connection_over(theirs, **terms) as connection:
        yield connection, Heard(ours.receive_stream)
    await trio.aclose_forcefully(ours)


@pytest.mark.parametrize("name", OLD)
async def test_the_setup_is_what_the_peer_understands(autojump_clock: object, name: str) -> None:
    async with asking(peer=name) as (connection, heard):
        assert connection.dialect == "reactivesocket/0.1"
        assert await heard.next() == bytes.fromhex(SETUPS[name])


@pytest.mark.parametrize("name", OLD)
async def test_requests_have_the_ids_of_the_peers_clients(autojump_clock: object, name: str) -> None:
    async with asking(peer=name) as (connection, heard):
        await heard.next()
        await connection.fire_and_forget(b"hi")
        assert await heard.next() == bytes.fromhex("0005 0000") + FIRST_IDS[name].to_bytes(4, "big") + b"hi"


@pytest.mark.parametrize("name", OLD)
async def test_over_messages_the_length_stays_for_those_that_keep_it(autojump_clock: object, name: str) -> None:
    ours, theirs = memory_pair()
    async with open_connection_over(ours, peer=name):
        (setup,) = await theirs.receive()
        length = setup[:4] if name in KEEP_LENGTHS else b""
        assert setup == length + bytes.fromhex(SETUPS[name])
        assert int.from_bytes(length, "big") in (0, len(setup))
    theirs.cut()


@pytest.mark.parametrize("name", OLD)
async def test_nothing_is_cut_for_a_peer_that_joins_no_fragments(autojump_clock: object, name: str) -> None:
    async with asking(peer=name) as (connection, heard):
        await heard.next()
        await connection.fire_and_forget(bytes(2_000_000))
        assert len(await heard.next()) == 8 + 2_000_000


@pytest.mark.parametrize("name", OLD)
async def test_credit_begins_where_the_peer_needs_it(autojump_clock: object, name: str) -> None:
    credit = 2 if name == "java-0.5.2" else 256
    async with asking(peer=name) as (connection, heard):
        await heard.next()
        async with connection.request_stream(b"s"):
            assert (await heard.next())[8:] == credit.to_bytes(4, "big") + b"s"
        await heard.next()  # CANCEL
        async with connection.request_channel(b"c"):
            assert (await heard.next())[8:] == credit.to_bytes(4, "big") + b"c"
        await heard.next()
        async with connection.request_subscription(b"s"):
            assert (await heard.next())[8:] == credit.to_bytes(4, "big") + b"s"
        await heard.next()
        async with connection.request_stream(b"s", initial_request_n=256):
            assert (await heard.next())[8:] == (256).to_bytes(4, "big") + b"s"


LARGEST = 2**24 - 1
"""Bytes of the largest frame of 0.2 and 1.0, whose length has 24 bits."""


@asynccontextmanager
async def asking_in_24_bits(**terms: Any) -> AsyncIterator[tuple[Connection, Heard]]:
    """A client of ours that has sent its SETUP to a peer of 0.2 or 1.0, and what it says next."""
    ours, theirs = trio.testing.memory_stream_pair()
    async with open_connection_over(theirs, **terms) as connection:
        frames = Heard(ours, 3, 0)
        assert (await frames.next()).hex() == SETUPS_24[terms.get("peer", KOTLIN)].replace(" ", "")
        yield connection, frames
    await trio.aclose_forcefully(ours)


async def test_what_python_gets_above_one_frame_is_cut(autojump_clock: object) -> None:
    async with asking_in_24_bits(peer=PYTHON) as (connection, frames):
        await connection.fire_and_forget(bytes(LARGEST - 5))
        assert (await frames.next())[:6].hex() == "000000011480"
        assert (await frames.next()).hex() == "00000001282000"


@pytest.mark.parametrize(
    "terms", [{"peer": KOTLIN}, {"peer": KOTLIN, "fragment_size": 64}, {"quirks": ["whole_requests"]}]
)
async def test_a_request_to_kotlin_is_whole_or_refused_here_and_the_connection_goes_on(
    autojump_clock: object, terms: dict[str, Any]
) -> None:
    async with asking_in_24_bits(**terms) as (connection, frames):
        for payload in Payload(bytes(LARGEST - 9)), Payload(b"", bytes(LARGEST - 12)):
            with pytest.raises(LocalProtocolError, match=r"REQUEST_STREAM of \d+ bytes can't be fragmented: the peer"):
                async with connection.request_stream(payload):
                    raise AssertionError("nothing was sent")
        async with connection.request_stream(bytes(LARGEST - 10)):
            assert len(await frames.next()) == LARGEST
        assert (await frames.next())[4:6].hex() == "2400"  # CANCEL
        await connection.fire_and_forget(bytes(100_000))
        assert len(await frames.next()) == 6 + 100_000


async def test_what_the_caller_gives_wins(autojump_clock: object) -> None:
    given = {"data_mime": "a/b", "metadata_mime": "text", "keepalive": Keepalive(20, 90), "fragment_size": 65536}
    async with asking(peer="js-1", **given) as (connection, heard):
        setup = await heard.next()
        assert setup[12:20] == bytes.fromhex("00004e20 00015f90")
        assert setup[20:] == b"\x04text\x03a/b"
        await connection.fire_and_forget(bytes(100_000))
        assert len(await heard.next()) <= 65536


async def test_a_default_that_is_given_wins_as_well(autojump_clock: object) -> None:
    given = {"data_mime": "application/octet-stream", "dialect": "0.1", "quirks": ["version_0_0"]}
    async with asking(peer="js-3", **given) as (connection, heard):
        setup = await heard.next()
        assert setup[8:12] == bytes(4)
        assert setup[20:] == b"\x05utf-8\x18application/octet-stream"
        await connection.fire_and_forget(b"")
        assert (await heard.next())[4:8] == bytes.fromhex("00000001")  # its own quirks stay


UNKNOWN = f"peer 'java-9': the known ones are {', '.join(NAMES)}"


@pytest.mark.parametrize(
    ("terms", "text"),
    [
        ({"peer": "java-9"}, UNKNOWN),
        ({"peer": "js-3", "dialect": "rsocket/1.0"}, "peer 'js-3' speaks reactivesocket/0.1, not rsocket/1.0"),
        ({"peer": "js-3", "dialect": "1.0"}, "peer 'js-3' speaks reactivesocket/0.1, not rsocket/1.0"),
        ({"peer": KOTLIN, "dialect": "0.2"}, "peer 'rsocket-kotlin/0.20' speaks rsocket/1.0, not reactivesocket/0.2"),
        ({"peer": "go-2016", "dialect": "streamux/1"}, "peer 'go-2016' speaks reactivesocket/0.1, not streamux/1"),
        ({"peer": "go-2016", "dialect": "x"}, "dialect 'x': the known ones are"),
        ({"peer": 5}, "peer 5: the known ones are"),
    ],
)
async def test_a_name_that_nobody_has_and_another_dialect_are_refused(terms: dict[str, Any], text: str) -> None:
    ours, theirs = memory_pair()
    with pytest.raises(ValueError, match=text):
        async with open_connection(NOWHERE, **terms):
            raise AssertionError("nothing was dialled")
    with pytest.raises(ValueError, match=text):
        async with open_connection_over(ours, **terms):
            raise AssertionError("nothing was said")
    with pytest.raises(ValueError, match=text):
        async with connect_forever(NOWHERE, **terms):
            raise AssertionError("told at once")
    theirs.cut()


@pytest.mark.parametrize("uri", ["tcp://127.0.0.1:0", "ws://127.0.0.1:0", "memory://peers", "h2://127.0.0.1:0"])
async def test_one_port_with_all_defaults_serves_clients_of_every_kind(uri: str) -> None:
    responder = Responder()

    @responder.request_response
    def echo(request: Payload) -> Payload:
        return request

    @responder.request_stream
    async def thrice(request: Payload) -> AsyncIterator[Payload]:
        for _ in range(3):
            yield request

    @responder.request_channel
    async def back(channel: Any) -> None:
        async for item in channel:
            await channel.send(item)

    with trio.fail_after(30):
        async with running_server(responder, uri) as uri:
            for name in [*NAMES, None]:
                async with open_connection(uri, peer=name) as connection:
                    assert (await connection.request_response(bytes(200_000))).data == bytes(200_000)
                    async with connection.request_stream(b"s") as items:
                        assert [item.data async for item in items] == [b"s"] * 3
                    async with connection.request_channel(b"c") as channel:
                        await channel.send(b"1")
                        await channel.send(b"2")
                        await channel.send_eof()
                        assert [item.data async for item in channel] == [b"1", b"2"]
            async with connect_forever(uri, peer="js-3") as client:
                assert (await client.request_response(b"x")).data == b"x"
