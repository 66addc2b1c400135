"""Listeners bind what URIs name, survive their clients, and leave nothing behind."""

from __future__ import annotations

import errno
import os
import re
import socket
import ssl
import stat
from pathlib import Path
from typing import Any

import pytest
import trio
import trustme
from trio.testing import MockClock

from rsocket_trio.transports.base import Transport
from rsocket_trio.transports.connect import open_transport
from rsocket_trio.transports.listen import ACCEPT_RETRY_DELAY, Accepted, BoundListener, ListenerAdapter, open_listeners
from rsocket_trio.transports.schemes import parse_uri
from tests.each_row import each_row
from tests.transports.pairs import receive_frames, transport_pair


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


async def hold(accepted: Accepted) -> None:
    async with accepted.open():
        await trio.sleep_forever()


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


async def test_nobody_who_hears_of_the_uri_comes_too_early() -> None:
    (listener,) = await open_listeners(["tcp://127.0.0.1:0"])
    async with open_transport(listener.uri):
        pass
    await listener.aclose()


@needs_ipv6
async def test_an_ipv6_address_is_served() -> None:
    async with transport_pair("tcp://[::1]:0") as (client, server):
        await client.send([b"over six"])
        assert await receive_frames(server, 1) == [b"over six"]
        assert server.handshake.peer_address.startswith("[::1]:")


DUAL = [f"{scheme}://[::]:0" for scheme in ("tcp", "tls", "ws", "wss", "h2", "h2s")]


@needs_ipv6
@each_row("uri", DUAL)
async def test_all_addresses_of_ipv6_are_those_of_ipv4_too(uri: str) -> None:
    authority = trustme.CA()
    server_context, client_context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), ssl.create_default_context()
    authority.issue_cert("127.0.0.1", "::1").configure_cert(server_context)
    authority.configure_trust(client_context)
    tell, told = trio.open_memory_channel[str](2)

    async def note(accepted: Accepted) -> None:
        async with accepted.open() as transport:
            await tell.send(transport.handshake.peer_address)
            await trio.sleep_forever()

    (listener,) = await open_listeners([uri], ssl_context=server_context)
    scheme, port = parse_uri(listener.uri).scheme, parse_uri(listener.uri).port
    assert listener.uri == f"{scheme}://[::]:{port}"
    async with trio.open_nursery() as nursery:
        await nursery.start(listener.serve, note)
        for host in ("127.0.0.1", "[::1]"):
            async with open_transport(f"{scheme}://{host}:{port}", ssl_context=client_context):
                assert (await told.receive()).startswith(f"{host}:")
        nursery.cancel_scope.cancel()


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
    listeners = await open_listeners(uris)

    assert [listener.uri for listener in listeners] == uris
    async with trio.open_nursery() as nursery:
        for listener in listeners:
            await nursery.start(listener.serve, hold)
        for uri in (other.replace("0.0.0.0", "127.0.0.1"), f"{scheme}://[::1]"):
            async with open_transport(f"{uri}:{port}"):
                pass
        nursery.cancel_scope.cancel()


@needs_ipv6
async def test_an_ipv4_uri_of_another_port_leaves_ipv6_both_families() -> None:
    listeners = await open_listeners(["tcp://127.0.0.1:0", "tcp://[::]:0"])
    port = parse_uri(listeners[1].uri).port
    with socket.create_connection(("127.0.0.1", port)):
        pass
    await close_all(listeners)


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
    (listener,) = await open_listeners(["tcp://twice:0"])
    monkeypatch.undo()
    endpoint = parse_uri(listener.uri)

    async with trio.open_nursery() as nursery:
        await nursery.start(listener.serve, hold)
        for address in ["127.0.0.1", "127.0.0.2"]:
            async with open_transport(f"tcp://{address}:{endpoint.port}"):
                pass
        nursery.cancel_scope.cancel()
    assert endpoint.host == "twice"


async def test_a_port_that_is_taken_on_the_second_address_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    ports: list[int] = []
    blocker = socket.socket()

    async def two_addresses(*_args: object, **_keywords: object) -> list[object]:
        kind = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
        return [(*kind, ("127.0.0.1", 0)), (*kind, ("127.0.0.2", 0))]

    original = socket.socket.listen

    def listen(self: socket.socket, backlog: int) -> None:
        original(self, backlog)
        host, port = self.getsockname()
        if host == "127.0.0.1" and not ports:
            blocker.bind(("127.0.0.2", port))
            original(blocker, 1)
        ports.append(port)

    monkeypatch.setattr(trio.socket, "getaddrinfo", two_addresses)
    monkeypatch.setattr(socket.socket, "listen", listen)
    (listener,) = await open_listeners(["tcp://twice:0"])
    await listener.aclose()
    blocker.close()

    first, *others = ports
    assert others == [parse_uri(listener.uri).port] * 2
    assert first not in others


@needs_ipv6
async def test_an_address_that_this_machine_lacks_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    async def addresses(*_args: object, **_keywords: object) -> list[object]:
        return [
            (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("2001:db8::1", 0, 0, 0)),
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0)),
        ]

    monkeypatch.setattr(trio.socket, "getaddrinfo", addresses)
    (listener,) = await open_listeners(["tcp://name:0"])

    await listener.aclose()
    assert parse_uri(listener.uri).port > 0


async def test_an_address_of_somebody_else_is_an_error_that_names_the_uri() -> None:
    with pytest.raises(OSError, match=r"cannot listen on tcp://192\.0\.2\.1:7878: cannot assign requested") as caught:
        await open_listeners(["tcp://192.0.2.1:7878"])

    assert caught.value.errno == errno.EADDRNOTAVAIL


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


async def test_without_a_mode_the_umask_decides(unix_uri: str) -> None:
    before = os.umask(0o077)
    try:
        (listener,) = await open_listeners([unix_uri])
    finally:
        os.umask(before)

    assert stat.S_IMODE(os.lstat(parse_uri(unix_uri).path).st_mode) == 0o700
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
        with pytest.raises(OSError, match=f"cannot listen on {unix_uri}: somebody listens there already") as caught:
            await open_listeners([unix_uri])
        assert caught.value.errno == errno.EADDRINUSE
        assert exists(path)
    for each in waiting:
        each.close()
    os.unlink(path)


async def test_a_path_that_is_no_socket_is_refused_and_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "precious"
    file.write_text("data")

    with pytest.raises(OSError, match="exists and is not a socket") as caught:
        await open_listeners([f"unix://{file}"])

    assert caught.value.errno == errno.EEXIST
    assert file.read_text() == "data"


async def test_a_path_in_a_folder_that_is_missing_is_an_error_that_names_the_uri(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"cannot listen on unix://.*/missing/s: no such file or directory"):
        await open_listeners([f"unix://{tmp_path}/missing/s"])


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
    (listener,) = await open_listeners(["tcp://127.0.0.1:0"])
    tell, told = trio.open_memory_channel[Transport](20)

    async def answer(accepted: Accepted) -> None:
        async with accepted.open() as transport:
            tell.send_nowait(transport)
            try:
                await transport.peek()
            except trio.BrokenResourceError:
                pass

    async with trio.open_nursery() as nursery:
        await nursery.start(listener.serve, answer)
        for _ in range(10):
            with socket.create_connection(("127.0.0.1", parse_uri(listener.uri).port)) as client:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            await told.receive()
        async with open_transport(listener.uri):
            await told.receive()
        nursery.cancel_scope.cancel()


def troubled(listener: BoundListener, wrong: int, monkeypatch: pytest.MonkeyPatch, failures: int = 2) -> None:
    """Let the first tries to accept fail."""
    [inner] = listener._listeners
    answers = [OSError(wrong, os.strerror(wrong))] * failures
    accept = inner.accept

    async def fail_first() -> Any:
        if answers:
            raise answers.pop()
        return await accept()

    monkeypatch.setattr(inner, "accept", fail_first)


async def test_accepting_goes_on_as_soon_as_there_are_descriptors_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    (listener,) = await open_listeners(["memory://m"])
    troubled(listener, errno.EMFILE, monkeypatch)
    accepted = trio.Event()

    async def notice(connection: Accepted) -> None:
        accepted.set()
        await hold(connection)

    async with trio.open_nursery() as nursery:
        await nursery.start(listener.serve, notice)
        started = trio.current_time()
        async with open_transport(listener.uri):
            await accepted.wait()
        nursery.cancel_scope.cancel()

    assert trio.current_time() - started == pytest.approx(2 * ACCEPT_RETRY_DELAY)
    text = "memory://m: no connection can be accepted: too many open files"
    assert [record.getMessage() for record in caplog.records] == [text]


async def test_listeners_that_get_no_descriptors_say_so_once_a_minute_together(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    listeners = await open_listeners(["memory://one", "memory://two"])
    async with trio.open_nursery() as nursery:
        for listener in listeners:
            troubled(listener, errno.EMFILE, monkeypatch, failures=10_000)
            await nursery.start(listener.serve, hold)
        await trio.sleep(3 * 60 - ACCEPT_RETRY_DELAY / 2)
        nursery.cancel_scope.cancel()

    first, *later = [record.getMessage() for record in caplog.records]
    assert first == "memory://one: no connection can be accepted: too many open files"
    assert len(later) == 2
    for line in later:
        found = re.fullmatch(r"memory://(one|two): .*; (\d+) more tries since the last such line", line)
        assert found is not None
        assert int(found[2]) == pytest.approx(2 * 60 / ACCEPT_RETRY_DELAY, abs=3)


async def test_a_listener_of_the_applications_own_without_descriptors_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    class Full(trio.abc.Listener[trio.abc.Stream]):
        async def accept(self) -> trio.abc.Stream:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

        async def aclose(self) -> None:
            return

    async with trio.open_nursery() as nursery:
        await nursery.start(ListenerAdapter(Full()).serve, hold)
        await trio.sleep(10)
        nursery.cancel_scope.cancel()

    assert [record.getMessage() for record in caplog.records] == [
        "stream: no connection can be accepted: too many open files"
    ]


async def test_a_listener_that_broke_ends_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    (listener,) = await open_listeners(["memory://m"])
    troubled(listener, errno.EBADF, monkeypatch)
    with pytest.RaisesGroup(OSError, flatten_subgroups=True):
        async with trio.open_nursery() as nursery:
            await nursery.start(listener.serve, hold)


async def test_what_a_handler_raises_is_the_callers() -> None:
    async def fail(accepted: Accepted) -> None:
        async with accepted.open():
            raise KeyError("a bug")

    (listener,) = await open_listeners(["tcp://127.0.0.1:0"])
    with pytest.RaisesGroup(KeyError, flatten_subgroups=True):
        async with trio.open_nursery() as nursery:
            await nursery.start(listener.serve, fail)
            async with open_transport(listener.uri):
                await trio.sleep_forever()


@pytest.mark.parametrize("uri", ["tcp://127.0.0.1:0", "ws://127.0.0.1:0/", "h2://127.0.0.1:0/", "memory://m"])
async def test_what_the_block_of_an_accepted_connection_raises_leaves_it_alone(uri: str) -> None:
    caught = trio.Event()

    async def fail(accepted: Accepted) -> None:
        with pytest.raises(KeyError, match="mine"):
            async with accepted.open():
                raise KeyError("mine")
        caught.set()

    (listener,) = await open_listeners([uri])
    async with trio.open_nursery() as nursery:
        await nursery.start(listener.serve, fail)
        async with open_transport(listener.uri):
            await caught.wait()
        nursery.cancel_scope.cancel()
