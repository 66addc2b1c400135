"""Listeners bind what URIs name, survive their clients, and leave nothing behind."""

from __future__ import annotations

import errno
import os
import socket
import stat
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from rsocket_trio.transports.base import Transport
from rsocket_trio.transports.connect import open_transport
from rsocket_trio.transports.listen import ACCEPT_RETRY_DELAY, Accepted, BoundListener, open_listeners
from rsocket_trio.transports.schemes import parse_uri
from tests.each_row import each_row
from tests.transports.pairs import hold, listening, transport_pair


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def exists(path: str) -> bool:
    return os.path.lexists(path)


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")


async def close_all(listeners: list[BoundListener]) -> None:
    for listener in listeners:
        await listener.aclose()


@pytest.fixture
def unix_uri(tmp_path: Path) -> str:
    # Socket paths are short, and pytest's may not be.
    return f"unix://{tmp_path / 's'}" if len(str(tmp_path)) < 90 else f"unix:///tmp/rsocket-trio-{os.getpid()}"


async def test_port_nought_is_resolved_and_the_order_is_kept(unix_uri: str) -> None:
    uris = ["tcp://127.0.0.1:0", "ws://127.0.0.1:0/rsocket", unix_uri, "memory://m", "tcp://localhost:0"]
    uris += ["h2://127.0.0.1:0/rsocket"]
    listeners = await open_listeners(uris)

    bound = [parse_uri(listener.uri) for listener in listeners]

    await close_all(listeners)
    assert [(each.scheme, each.path) for each in bound] == [(each.scheme, each.path) for each in map(parse_uri, uris)]
    assert all(each.port for each in bound if each.scheme in {"tcp", "ws", "h2"})
    assert bound[4].host == "localhost"


@needs_ipv6
@each_row("uri", ["tcp://[::]:0", "ws://[::]:0", "h2://[::]:0"])
async def test_all_addresses_of_ipv6_are_those_of_ipv4_too(uri: str) -> None:
    tell, told = trio.open_memory_channel[str](2)

    async def note(accepted: Accepted) -> None:
        async with accepted.open() as transport:
            await tell.send(transport.handshake.peer_address)
            await trio.sleep_forever()

    async with listening(note, uri) as [bound]:
        scheme, port = parse_uri(bound).scheme, parse_uri(bound).port
        assert bound == f"{scheme}://[::]:{port}"
        for host in ("127.0.0.1", "[::1]"):
            async with open_transport(f"{scheme}://{host}:{port}"):
                assert (await told.receive()).startswith(f"{host}:")


@needs_ipv6
@each_row("order", [1, -1])
@each_row(
    ("scheme", "other"),
    [("tcp", "tcp://127.0.0.1"), ("tcp", "tcp://0.0.0.0"), ("ws", "tcp://127.0.0.1"), ("tcp", "h2://0.0.0.0")],
)
async def test_beside_an_ipv4_uri_of_its_port_the_other_is_ipv6_only(order: int, scheme: str, other: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    uris = [f"{other}:{port}", f"{scheme}://[::]:{port}"][::order]
    async with listening(hold, *uris) as bound:
        assert bound == uris
        for uri in (other.replace("0.0.0.0", "127.0.0.1"), f"{scheme}://[::1]"):
            async with open_transport(f"{uri}:{port}"):
                pass


@needs_ipv6
async def test_ipv6_that_finds_its_port_taken_on_ipv4_is_an_error() -> None:
    (taken,) = await open_listeners(["tcp://127.0.0.1:0"])
    port = parse_uri(taken.uri).port
    with pytest.raises(OSError, match=rf"cannot listen on tcp://\[::\]:{port}: address already in use"):
        await open_listeners([f"tcp://[::]:{port}"])
    await taken.aclose()


async def test_a_name_with_several_addresses_is_bound_on_all_of_them_with_one_port(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def two_addresses(*_args: object, **_keywords: object) -> list[object]:
        kind = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
        return [(*kind, ("127.0.0.1", 0)), (*kind, ("127.0.0.2", 0)), (*kind, ("127.0.0.2", 0))]

    monkeypatch.setattr(trio.socket, "getaddrinfo", two_addresses)
    async with listening(hold, "tcp://twice:0") as [uri]:
        monkeypatch.undo()
        assert parse_uri(uri).host == "twice"
        for address in ["127.0.0.1", "127.0.0.2"]:
            async with open_transport(f"tcp://{address}:{parse_uri(uri).port}"):
                pass


@each_row(
    ("uri", "number", "text"),
    [
        ("tcp://192.0.2.1:7878", errno.EADDRNOTAVAIL, "cannot assign requested"),
        ("unix:///nowhere/at/all", errno.ENOENT, "no such file or directory"),
        ("unix:///dev/null", errno.EEXIST, "exists and is not a socket"),
    ],
)
async def test_an_address_that_cannot_be_had_is_an_error_that_names_the_uri(uri: str, number: int, text: str) -> None:
    with pytest.raises(OSError, match=rf"cannot listen on {uri}: .*{text}") as caught:
        await open_listeners([uri])

    assert caught.value.errno == number


async def test_if_the_second_uri_fails_the_first_is_free_again() -> None:
    (taken,) = await open_listeners(["tcp://127.0.0.1:0"])

    with pytest.raises(OSError, match=rf"cannot listen on {taken.uri}: address already in use") as caught:
        await open_listeners(["memory://first", taken.uri])

    assert caught.value.errno == errno.EADDRINUSE
    await close_all(await open_listeners(["memory://first"]))
    await taken.aclose()


async def test_frames_cross_a_unix_socket_and_the_path_is_gone_afterwards(unix_uri: str) -> None:
    async with transport_pair(unix_uri) as (client, server):
        path = parse_uri(unix_uri).path
        assert client.handshake.peer_address == server.handshake.peer_address == path
        await client.send([b"a frame"])
        assert await server.receive() == [b"a frame"]
        assert stat.S_ISSOCK(os.lstat(path).st_mode)
    assert not exists(path)


@pytest.mark.parametrize("mode", [0o600, 0o666])
async def test_the_path_gets_the_mode_that_was_asked_for(unix_uri: str, mode: int) -> None:
    (listener,) = await open_listeners([unix_uri], unix_mode=mode)

    assert stat.S_IMODE(os.lstat(parse_uri(unix_uri).path).st_mode) == mode
    await listener.aclose()


async def test_what_a_crashed_server_left_is_replaced(unix_uri: str) -> None:
    path = parse_uri(unix_uri).path
    with socket.socket(socket.AF_UNIX) as crashed:
        crashed.bind(path)
        crashed.listen()

    async with transport_pair(unix_uri) as (client, server):
        await client.send([b"a frame"])
        assert await server.receive() == [b"a frame"]


@pytest.mark.parametrize("backlog", [1, 0])
async def test_a_path_that_somebody_listens_on_is_refused(unix_uri: str, backlog: int) -> None:
    path = parse_uri(unix_uri).path
    waiting: list[socket.socket] = []
    with socket.socket(socket.AF_UNIX) as alive:
        alive.bind(path)
        alive.listen(backlog)
        while backlog == 0:  # fill it: a server that is merely behind is alive as well
            waiting.append(socket.socket(socket.AF_UNIX))
            waiting[-1].setblocking(False)
            try:
                waiting[-1].connect(path)
            except BlockingIOError:
                break
        with pytest.raises(OSError, match=f"cannot listen on {unix_uri}: somebody listens there already"):
            await open_listeners([unix_uri])
        assert exists(path)
    for each in waiting:
        each.close()
    os.unlink(path)


async def test_a_path_that_somebody_else_took_over_is_left_alone(unix_uri: str) -> None:
    path = parse_uri(unix_uri).path
    (listener,) = await open_listeners([unix_uri])
    os.rename(path, path + ".old")  # keeps the number of the file in use
    with socket.socket(socket.AF_UNIX) as successor:
        successor.bind(path)
        await listener.aclose()
        assert exists(path)
    os.unlink(path)
    os.unlink(path + ".old")


async def test_cancelling_serve_closes_every_listener(unix_uri: str) -> None:
    listeners = await open_listeners(["tcp://127.0.0.1:0", unix_uri, "memory://m"])
    async with trio.open_nursery() as nursery:
        for listener in listeners:
            assert await nursery.start(listener.serve, hold) == listener.uri
        nursery.cancel_scope.cancel()

    await close_all(await open_listeners([listener.uri for listener in listeners]))


async def test_a_listener_survives_a_client_that_resets_at_once() -> None:
    tell, told = trio.open_memory_channel[Transport](20)

    async def answer(accepted: Accepted) -> None:
        async with accepted.open() as transport:
            tell.send_nowait(transport)
            try:
                await transport.peek()
            except trio.BrokenResourceError:
                pass

    async with listening(answer, "tcp://127.0.0.1:0") as [uri]:
        for _ in range(10):
            with socket.create_connection(("127.0.0.1", parse_uri(uri).port)) as client:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            await told.receive()
        async with open_transport(uri):
            await told.receive()


async def test_without_descriptors_listeners_say_so_once_a_minute_and_accept_once_there_are_some(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    lasts = 3 * 60 - ACCEPT_RETRY_DELAY / 2
    accepted = trio.Event()

    def impoverish(listener: trio.abc.Listener[Any]) -> None:
        accept = listener.accept

        async def fail_at_first() -> Any:
            if trio.current_time() < lasts:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return await accept()

        monkeypatch.setattr(listener, "accept", fail_at_first)

    async def notice(connection: Accepted) -> None:
        accepted.set()
        await hold(connection)

    listeners = await open_listeners(["memory://one", "memory://two"])
    async with trio.open_nursery() as nursery:
        for listener in listeners:
            [inner] = listener._listeners
            impoverish(inner)
            await nursery.start(listener.serve, notice)
        async with open_transport("memory://one"):
            await accepted.wait()
        nursery.cancel_scope.cancel()

    assert trio.current_time() == pytest.approx(lasts, abs=ACCEPT_RETRY_DELAY)
    lines = [f"memory://{name}: no connection can be accepted: too many open files" for name in ("one", "two")]
    assert sorted(record.getMessage() for record in caplog.records) == sorted(3 * lines)


@pytest.mark.parametrize("uri", ["tcp://127.0.0.1:0", "ws://127.0.0.1:0/", "h2://127.0.0.1:0/", "memory://m"])
async def test_what_the_block_of_an_accepted_connection_raises_leaves_it_alone(uri: str) -> None:
    caught = trio.Event()

    async def fail(accepted: Accepted) -> None:
        with pytest.raises(KeyError, match="mine"):
            async with accepted.open():
                raise KeyError("mine")
        caught.set()

    async with listening(fail, uri) as [bound], open_transport(bound):
        await caught.wait()
