"""What do sockets need around them? Names of peers, the TLS handshake, and binding addresses and paths."""

from __future__ import annotations

import errno
import os
import socket
import ssl
import stat
from collections.abc import Sequence
from contextlib import suppress

import attrs
import trio

from rsocket_trio.transports.base import Handshake
from rsocket_trio.transports.reasons import HandshakeFailed, reason

COMMON_PORT_TRIES = 16
"""How often a free port is looked for that several addresses share."""
NO_SUCH_ADDRESS = frozenset({errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.EPROTONOSUPPORT})

STEP_BACK = 0.005
"""Seconds that a process which shares a listener leaves to the others after it got a connection."""
IN_A_ROW = 4
"""How many it may take out of a queue before it does so again: 800 a second, which is more than it could serve."""
ONE_LOST = frozenset(
    {
        *(errno.ECONNABORTED, errno.EPROTO, errno.EPERM, errno.ENETDOWN, errno.ENOPROTOOPT, errno.EHOSTDOWN),
        *(errno.ENONET, errno.EHOSTUNREACH, errno.EOPNOTSUPP, errno.ENETUNREACH),
    }
)
"""Errors of accept that tell of one connection, as Linux's accept(2) says."""


def peer_name(stream: trio.SocketStream) -> str:
    """``host:port`` of the other end; empty when it is gone already, or a Unix socket."""
    with suppress(OSError):
        name = stream.socket.getpeername()
        if isinstance(name, tuple):
            host, port = name[:2]
            return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return ""


async def open_tcp(host: str, port: int) -> trio.SocketStream:
    """Connect to a host, at whichever of its addresses answers first. Raises ``OSError``."""
    family = _family(host)
    if family is None:
        return await trio.open_tcp_stream(host, port)
    # One address, so there is nothing to race: a quarter of what connecting costs is saved.
    connecting = trio.socket.socket(family, socket.SOCK_STREAM)
    try:
        await connecting.connect((host, port))
    except BaseException:
        connecting.close()
        raise
    return trio.SocketStream(connecting)


def _family(host: str) -> socket.AddressFamily | None:
    """The family of an address; ``None`` for a name."""
    for family in (socket.AF_INET, socket.AF_INET6):
        with suppress(OSError, ValueError):
            socket.inet_pton(family, host)
            return family
    return None


async def secure(stream: trio.SSLStream[trio.SocketStream], handshake: Handshake) -> Handshake:
    """Do the TLS handshake, which would else wait for the first read, and add the peer's certificate to what is known.

    Raises ``HandshakeFailed``.
    """
    try:
        await stream.do_handshake()
    except trio.BrokenResourceError as exc:
        cause = exc if exc.__cause__ is None else exc.__cause__
        raise HandshakeFailed(reason(cause)) from cause
    return attrs.evolve(handshake, certificate=stream.getpeercert() or None)


async def bind_tcp(host: str, port: int, backlog: int) -> list[trio.SocketListener]:
    """Listeners for every address that a name has, all on one port; port 0 takes one that is free on all.

    Addresses that this machine cannot have (IPv6 without IPv6) are left out as long as one remains.
    """
    found = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    addresses = list(dict.fromkeys((family, address) for family, _, _, _, address in found))
    for tries_left in reversed(range(COMMON_PORT_TRIES)):
        try:
            sockets = _bind_all(addresses, port, backlog)
        except OSError as exc:
            # Free on the first address need not be free on the others.
            if exc.errno == errno.EADDRINUSE and port == 0 and tries_left:
                continue
            raise
        return [trio.SocketListener(trio.socket.from_stdlib_socket(each)) for each in sockets]
    raise AssertionError("the last try returns or raises")


def _bind_all(
    addresses: Sequence[tuple[socket.AddressFamily, tuple[object, ...]]], port: int, backlog: int
) -> list[socket.socket]:
    bound: list[socket.socket] = []
    absent: OSError | None = None
    try:
        for family, address in addresses:
            try:
                one = socket.socket(family, socket.SOCK_STREAM)
            except OSError as exc:
                if exc.errno not in NO_SUCH_ADDRESS:
                    raise
                absent = exc
                continue
            bound.append(one)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            try:
                one.bind((address[0], port, *address[2:]))
            except OSError as exc:
                if exc.errno not in NO_SUCH_ADDRESS:
                    raise
                absent = exc
                bound.pop().close()
                continue
            one.listen(backlog)
            port = one.getsockname()[1]
    except BaseException:
        for one in bound:
            one.close()
        raise
    if not bound and absent is not None:
        raise absent
    return bound


@attrs.define(eq=False)
class UnixListener(trio.abc.Listener[trio.SocketStream]):
    """A listener that removes its path when it is closed, if the path is still its own."""

    path: str
    listener: trio.SocketListener
    identity: tuple[int, int]

    async def accept(self) -> trio.SocketStream:
        """The next connection."""
        return await self.listener.accept()

    async def aclose(self) -> None:
        """Stop listening and remove the path."""
        # First the path: whoever finds it must find somebody listening.
        if _identity(self.path) == self.identity:
            with suppress(OSError):
                os.unlink(self.path)
        await self.listener.aclose()


class SharedListener(trio.abc.Listener[trio.SocketStream]):
    """A listener whose socket other processes accept from as well, so that connections come to all in turn.

    All are woken by each connection, and among idle ones the system lets the same one win again and again. So whoever
    got the last one lets the others go first, and whoever got some in a row out of a queue does that too: else it would
    have most of a burst, for as long as they stay.
    """

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._socket.setblocking(False)
        self._got_the_last = False
        self._in_a_row = 0

    async def accept(self) -> trio.SocketStream:
        """The next connection. What was accepted is never dropped by a cancel."""
        await trio.lowlevel.checkpoint()
        if self._in_a_row == IN_A_ROW:
            self._in_a_row = 0
            await trio.sleep(STEP_BACK)
        while True:
            if self._socket.fileno() < 0:
                raise trio.ClosedResourceError
            try:
                accepted, _ = self._socket.accept()
            except BlockingIOError:
                self._in_a_row = 0
                await trio.lowlevel.wait_readable(self._socket)
                if self._got_the_last:
                    self._got_the_last = False
                    await trio.sleep(STEP_BACK)
            except OSError as error:
                if error.errno not in ONE_LOST:
                    raise
            else:
                self._got_the_last = True
                self._in_a_row += 1
                return trio.SocketStream(trio.socket.from_stdlib_socket(accepted))

    async def aclose(self) -> None:
        """Accept no more here. The socket listens for as long as any process has it."""
        if self._socket.fileno() >= 0:
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()
        await trio.lowlevel.checkpoint()


def bind_unix(path: str, mode: int | None, backlog: int) -> UnixListener:
    """A listener at a path. What a crashed server left there is replaced; anything else is an ``OSError``."""
    _remove_stale(path)
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        bound.bind(path)
        identity = _identity(path)
        if mode is not None:
            # Before listen() nobody can connect, so there is no moment with the wrong mode.
            os.chmod(path, mode)
        bound.listen(backlog)
        listener = trio.SocketListener(trio.socket.from_stdlib_socket(bound))
    except BaseException:
        bound.close()
        raise
    assert identity is not None
    return UnixListener(path, listener, identity)


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _remove_stale(path: str) -> None:
    """Remove a socket that nobody listens on."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise FileExistsError(errno.EEXIST, "exists and is not a socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)  # a full backlog says "try again" rather than holding us up
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            if _identity(path) == (found.st_dev, found.st_ino):
                os.unlink(path)
            return
        except FileNotFoundError:
            return
        except BlockingIOError:
            pass
    raise OSError(errno.EADDRINUSE, "somebody listens there already")


def server_tls(context: ssl.SSLContext, stream: trio.SocketStream) -> trio.SSLStream[trio.SocketStream]:
    """The server's side of TLS over an accepted stream, its handshake still to be done."""
    return trio.SSLStream(stream, context, server_side=True, https_compatible=True)
