"""Connects and binds TCP and Unix sockets, does the TLS handshake and names the peer."""

from __future__ import annotations

import errno
import os
import socket
import ssl
import stat
from abc import abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import Any, Final, TypeVar
from weakref import WeakSet

import attrs
import trio

from rsocket_trio.transports.base import Handshake
from rsocket_trio.transports.error_text import NO_FRAME, TLS_ENDS, HandshakeFailed, NoAlpn, NoTls, PeerLeft, reason
from rsocket_trio.transports.first_bytes import HEAD_SIZE, is_tls
from rsocket_trio.transports.socket_stream import SocketStream

NO_SUCH_ADDRESS = frozenset({errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.EPROTONOSUPPORT})

Carrier_co = TypeVar("Carrier_co", bound=trio.abc.AsyncResource, covariant=True)
BACKLOG = 1024
"""Connections that the system completes before they are accepted. It cuts this down to its own maximum."""
ONE_LOST = frozenset(
    getattr(errno, name)
    for name in (
        *("ECONNABORTED", "ECONNRESET", "EPERM", "EPROTO", "ENOPROTOOPT", "EPROTONOSUPPORT", "ESOCKTNOSUPPORT"),
        *("ENETDOWN", "ENETUNREACH", "EHOSTDOWN", "EHOSTUNREACH", "ENONET", "ENOSR", "EOPNOTSUPP", "ETIMEDOUT"),
    )
    if hasattr(errno, name)
)
"""Errors of accept that concern one connection only, according to Linux's accept(2)."""
STEP_BACK = 0.005
"""Seconds that a process which shares a listener leaves to the others after it got a connection."""
IN_A_ROW = 4
"""Connections that it may take in a row before it does so again: 800 a second, more than it could serve."""
NOT_AGREED: Final = "TLS answered, and did not agree on"
NO_PROTOCOL: Final = "alert no application protocol"
"""The text of OpenSSL for the alert of a server that speaks none of the protocols offered (RFC 7301, 3.2)."""
_OFFERING: Final = WeakSet[ssl.SSLContext]()
"""Contexts that offer the protocols of a scheme."""


async def open_tcp(host: str, port: int) -> SocketStream:
    """Connect to a host, at the first of its addresses that answers. Raise ``OSError``."""
    family = _family(host)
    if family is None:
        return _taken_over(await trio.open_tcp_stream(host, port))
    # One address, so there is nothing to race: that saves a quarter of the cost of connecting.
    try:
        connecting = socket.socket(family, socket.SOCK_STREAM)
        try:
            return await _connect(connecting, (host, port))
        except BaseException:
            connecting.close()
            raise
    except OSError:
        # The system may fail at once, and a task that tries again and again must not hold up all others.
        await trio.lowlevel.checkpoint()
        raise


async def open_unix(path: str) -> SocketStream:
    """Connect to a Unix socket. Raise ``OSError``."""
    return _taken_over(await trio.open_unix_socket(path))


async def _connect(connecting: socket.socket, address: tuple[str, int]) -> SocketStream:
    await trio.lowlevel.checkpoint_if_cancelled()
    connecting.setblocking(False)
    try:
        connecting.connect(address)
    except BlockingIOError:
        # Within one machine the other end has answered by now: a second call finds that, and nothing is waited for.
        error = connecting.connect_ex(address)
        if error == errno.EALREADY:
            await trio.lowlevel.wait_writable(connecting)
            error = connecting.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error not in (0, errno.EISCONN):
            text = os.strerror(error)
            raise OSError(error, f"{text}, and {NO_FRAME}" if error == errno.ECONNRESET else text) from None
    # An address of IPv4 has one spelling, so that the system need not be asked for the peer's. 0.0.0.0 is none.
    known = connecting.family == socket.AF_INET and address[0] != "0.0.0.0"
    return SocketStream(connecting, address if known else None)


def _taken_over(stream: trio.SocketStream) -> SocketStream:
    """Take the socket out of a Trio stream, which is of no more use then."""
    family = stream.socket.family
    return SocketStream(socket.socket(family, socket.SOCK_STREAM, fileno=stream.socket.detach()))


def _family(host: str) -> socket.AddressFamily | None:
    """Return the family of an address; ``None`` for a name."""
    for family in (socket.AF_INET, socket.AF_INET6):
        with suppress(OSError, ValueError):
            socket.inet_pton(family, host)
            return family
    return None


async def secure(stream: trio.SSLStream[trio.abc.Stream], handshake: Handshake, alpn: Sequence[str] = ()) -> Handshake:
    """Do the TLS handshake at once, not at the first read. Return the handshake with the peer's certificate.

    Raise ``HandshakeFailed``: ``NoTls`` for a peer whose first bytes are others, ``NoAlpn`` if ``alpn`` names protocols
    and the peer agreed on none of them.
    """
    below = stream.transport_stream
    stream.transport_stream = first = _FirstRead(below)
    try:
        await stream.do_handshake()
    except trio.BrokenResourceError as exc:
        cause = exc if exc.__cause__ is None else exc.__cause__
        if first.data and not is_tls(first.data):
            raise NoTls(reason(cause), first.data) from cause
        if alpn and isinstance(cause, ssl.SSLError) and NO_PROTOCOL in str(cause).lower().replace("_", " "):
            raise HandshakeFailed(f"{NOT_AGREED} {' or '.join(alpn)} by ALPN") from cause
        is_fault = isinstance(cause, ssl.SSLError) and not isinstance(cause, TLS_ENDS)
        raise (HandshakeFailed if is_fault else PeerLeft)(reason(cause)) from cause
    finally:
        stream.transport_stream = below
    if alpn and stream.selected_alpn_protocol() not in alpn:
        raise NoAlpn(f"{NOT_AGREED} {' or '.join(alpn)} by ALPN")
    return attrs.evolve(handshake, certificate=stream.getpeercert() or None)


class _FirstRead(trio.abc.Stream):
    """The stream below TLS during the handshake. ``data`` is the beginning of what was read first."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream
        self.data = b""

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        chunk = await self._stream.receive_some(max_bytes)
        if not self.data:
            self.data = bytes(chunk[:HEAD_SIZE])
        return chunk

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        await self._stream.aclose()


async def bind_tcp(host: str, port: int, *, shares_ipv4: bool = False) -> list[SocketListener]:
    """Bind every address that a name has, all on one port, which port 0 takes from the system.

    Addresses that this machine cannot have (IPv6 without IPv6) are left out as long as one remains. With
    ``shares_ipv4`` the address ``::`` is that of all interfaces over IPv4, too.
    """
    results = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    addresses = list(dict.fromkeys((family, address) for family, _, _, _, address in results))
    absent: OSError | None = None
    with ExitStack() as bound:
        listeners: list[SocketListener] = []
        for family, address in addresses:
            both = shares_ipv4 and address[0] == "::" and socket.has_dualstack_ipv6()
            place = (address[0], port, *address[2:])
            try:
                listening = socket.create_server(place, family=family, backlog=BACKLOG, dualstack_ipv6=both)
            except OSError as error:
                # Its own text repeats the address.
                absent = OSError(error.errno, os.strerror(error.errno or 0))
                if error.errno not in NO_SUCH_ADDRESS:
                    raise absent from None
                continue
            port = bound.enter_context(listening).getsockname()[1]
            listeners.append(SocketListener(listening))
        if not listeners and absent is not None:
            raise absent
        bound.pop_all()
        return listeners


class QueueListener(trio.abc.Listener[Carrier_co]):
    """A listener that knows whether a connection waits."""

    @abstractmethod
    def take_or_close(self) -> Carrier_co | None:
        """Return the connection that waits first. If none does, close this, and return ``None``.

        Raise ``ClosedResourceError``, and ``OSError``: one of ``ONE_LOST`` if that connection is gone already.
        """

    def hide(self) -> None:
        """Have no more clients find this, if that cuts off none of those that wait."""


class SocketListener(QueueListener[SocketStream]):
    """Accepts from a listening socket. A cancel never drops an accepted connection."""

    def __init__(self, listening: socket.socket) -> None:
        listening.setblocking(False)
        self.socket = listening

    async def accept(self) -> SocketStream:
        """Return the next connection. Raise ``ClosedResourceError``, and ``OSError`` without more sockets."""
        accepted = None
        while accepted is None:
            self._check_open()
            # Wait first, since mostly no other connection came together with the last one.
            await trio.lowlevel.wait_readable(self.socket)
            accepted = self._take()
        return accepted

    def take_or_close(self) -> SocketStream | None:
        if self.socket.fileno() >= 0:
            trio.lowlevel.notify_closing(self.socket)
        accepted = self._accept_now()
        if accepted is None:
            self.socket.close()  # at once: what comes in between is lost
        return accepted

    async def aclose(self) -> None:
        """Stop accepting here. The socket listens for as long as any process has it."""
        if self.socket.fileno() >= 0:
            trio.lowlevel.notify_closing(self.socket)
            self.socket.close()
        await trio.lowlevel.checkpoint()

    def _take(self) -> SocketStream | None:
        """Return the connection that waits first; ``None`` if none does, or it is gone already."""
        try:
            return self._accept_now()
        except OSError as error:
            if error.errno not in ONE_LOST:
                raise
            return None

    def _accept_now(self) -> SocketStream | None:
        """Return the connection that waits first; ``None`` if none does."""
        self._check_open()
        try:
            accepted, address = self.socket.accept()
        except BlockingIOError:
            return None
        return SocketStream(accepted, address)

    def _check_open(self) -> None:
        if self.socket.fileno() < 0:
            raise trio.ClosedResourceError


class SharedListener(SocketListener):
    """A listener whose socket other processes accept from as well, so that connections come to all in turn.

    All are woken by each connection, and among idle ones the system lets the same one win again and again. So the
    process that got the last connection lets the others go first, and so does a process that took several in a row out
    of a queue: else it would take most of a burst, for as long as its connections stay.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__(socket.socket(fileno=descriptor))
        self._got_the_last = False
        self._in_a_row = 0

    async def accept(self) -> SocketStream:
        """Return the next connection. A cancel never drops an accepted connection."""
        await trio.lowlevel.checkpoint()
        if self._in_a_row == IN_A_ROW:
            self._in_a_row = 0
            await trio.sleep(STEP_BACK)
        while (accepted := self._take()) is None:
            self._in_a_row = 0
            await trio.lowlevel.wait_readable(self.socket)
            if self._got_the_last:
                self._got_the_last = False
                await trio.sleep(STEP_BACK)
        self._got_the_last = True
        self._in_a_row += 1
        return accepted


class UnixListener(SocketListener):
    """A listener that removes its path when it is closed, if the path is still its own."""

    def __init__(self, listening: socket.socket, path: str) -> None:
        super().__init__(listening)
        self._path = path
        self._identity = os.lstat(path)

    def hide(self) -> None:
        with suppress(OSError):
            if os.path.samestat(os.lstat(self._path), self._identity):
                os.unlink(self._path)

    async def aclose(self) -> None:
        # Remove the path first: a client that finds it must find a listening socket.
        self.hide()
        await super().aclose()


def bind_unix(path: str, mode: int | None) -> UnixListener:
    """Bind a path. Replace the socket of a crashed server; raise ``OSError`` for anything else there."""
    _remove_stale(path)
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        bound.bind(path)
        listener = UnixListener(bound, path)
        if mode is not None:
            # Before listen() no client can connect, so there is no moment with the wrong mode.
            os.chmod(path, mode)
        bound.listen(BACKLOG)
    except BaseException:
        bound.close()
        raise
    return listener


def _remove_stale(path: str) -> None:
    """Remove a socket at the path if no process listens on it. Raise ``OSError`` for anything else there."""
    try:
        identity = os.lstat(path)
    except OSError:
        return
    if not stat.S_ISSOCK(identity.st_mode):
        raise FileExistsError(errno.EEXIST, "exists and is not a socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)  # a full backlog says "try again" rather than holding us up
        error = probe.connect_ex(path)
    if error in (0, errno.EAGAIN):
        raise OSError(errno.EADDRINUSE, "somebody listens there already")
    if error not in (errno.ECONNREFUSED, errno.ENOENT):
        raise OSError(error, os.strerror(error))
    with suppress(FileNotFoundError):
        if error == errno.ECONNREFUSED and os.path.samestat(os.lstat(path), identity):
            os.unlink(path)


class WholeReads(ssl.SSLObject):
    """One end of TLS that decrypts all records that are here with one read: Trio lets all tasks run after each read."""

    _error: ssl.SSLError | None = None

    def read(self, len: int = 1024, buffer: Any = None) -> Any:
        """Return at most ``len`` bytes, of as many records as have come. An error comes with the next read instead."""
        if buffer is not None:
            return super().read(len, buffer)
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        data = super().read(len)
        parts, left = [data], len - data.__len__()
        while left and data:
            try:
                data = super().read(left)
            except ssl.SSLWantReadError:
                break  # the next read finds that, too
            except ssl.SSLError as error:
                self._error = error
                break
            parts.append(data)
            left -= data.__len__()
        return b"".join(parts)


def tls_stream(
    context: ssl.SSLContext, stream: trio.abc.Stream, host: str | None = None, alpn: Sequence[str] = ()
) -> trio.SSLStream[trio.abc.Stream]:
    """Return one side of TLS, its handshake still to be done: a client's with a ``host``, just ``alpn`` offered."""
    if host is not None and alpn:
        context.set_alpn_protocols(list(alpn))
        _OFFERING.add(context)
    elif host is not None and context in _OFFERING:
        # A WebSocket server that speaks HTTP/2 as well would choose that.
        context.set_alpn_protocols([])
        _OFFERING.discard(context)
    # The application's context may be used elsewhere: its class of objects stays its own.
    kept = context.sslobject_class
    if kept is ssl.SSLObject:
        context.sslobject_class = WholeReads
    try:
        return trio.SSLStream(stream, context, server_hostname=host, server_side=host is None, https_compatible=True)
    finally:
        context.sslobject_class = kept


# The contexts of PEM files


def client_context(
    trust: str | None, cert: str | None, key: str | None, *, untrusted: bool = False
) -> ssl.SSLContext | None:
    """Return the TLS context of a client, or ``None`` for the system's default. Raise ``OSError`` naming the files."""
    if not (trust or cert or untrusted):
        return None
    context = _context(ssl.Purpose.SERVER_AUTH, trust, cert, key)
    if untrusted:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def server_context(cert: str, key: str | None, client_ca: str | None) -> ssl.SSLContext:
    """Return the TLS context of a server. With ``client_ca``, clients must show a certificate of these authorities.

    Raise ``OSError`` naming the files.
    """
    context = _context(ssl.Purpose.CLIENT_AUTH, client_ca, cert, key)
    if client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _context(purpose: ssl.Purpose, authorities: str | None, cert: str | None, key: str | None) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(purpose, cafile=authorities)
        if cert is not None:
            context.load_cert_chain(cert, key)
    except OSError as error:
        why = (error.reason or "no PEM file") if isinstance(error, ssl.SSLError) else error.strerror or str(error)
        files = " and ".join(filter(None, (authorities, cert, key)))
        raise OSError(f"cannot use the certificates and keys of {files}: {why.lower().replace('_', ' ')}") from error
    return context
