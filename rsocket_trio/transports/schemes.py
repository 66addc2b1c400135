"""The registry of transports: the scheme of a URI says how it is parsed, connected and listened on."""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, cast

import attrs
import trio

from rsocket_trio.extras import install_command
from rsocket_trio.limits import Limits
from rsocket_trio.transports.base import UNLIMITED, ConnectTimeout, Handshake, Transport
from rsocket_trio.transports.byte_stream import ByteStreamTransport
from rsocket_trio.transports.first_bytes import HTTP_2_REFUSAL, FirstBytes
from rsocket_trio.transports.socket_stream import SocketStream
from rsocket_trio.transports.sockets import bind_tcp, bind_unix, open_tcp, open_unix
from rsocket_trio.transports.websocket.origins import OWN, Origins
from rsocket_trio.values import value

if TYPE_CHECKING:
    from rsocket_trio.transports.http2.http2_handshake import AcceptedHttp2, SharedHttp2

Carrier: TypeAlias = trio.abc.Stream | Transport
"""The connection that a scheme gives: a stream of bytes, or a transport that moves whole frames already."""
AnyListener: TypeAlias = trio.abc.Listener[Any]
"""Accepts carriers."""


@value
class Endpoint:
    """The transport and address of a URI. ``str()`` gives the URI back.

    ``host`` is without brackets, and the name for ``memory``; ``port`` is 0 if there is none; ``path`` is that of
    the socket for ``unix``, and path and query as they were written for the schemes over HTTP.
    """

    scheme: str
    host: str = ""
    port: int = 0
    path: str = ""

    @property
    def row(self) -> Scheme:
        """The registered scheme."""
        return REGISTRY[self.scheme]

    @property
    def uses_tls(self) -> bool:
        """Return whether the bytes are encrypted."""
        return self.row.uses_tls

    @property
    def authority(self) -> str:
        """``host:port``, an IPv6 address in brackets, the scheme's own port left out."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        if self.port and self.port == self.row.default_port:
            return host
        return f"{host}:{self.port}"

    def __str__(self) -> str:
        where = self.authority if self.row.parse is parse_address else "" if self.path else self.host
        return f"{self.scheme}{self.row.separator}{where}{self.path}"


@attrs.frozen
class ListenOptions:
    """The options of listening. A scheme that has no use for one ignores it."""

    unix_mode: int | None = None
    """Permissions of the path of a Unix socket; ``None`` leaves them to the umask."""
    over: object | None = None
    """The object that listeners share, in a scheme that has one: the media driver of Aeron."""
    shares_ipv4: bool = False
    """True if all addresses of IPv6, ``[::]``, include those of IPv4."""


@attrs.frozen
class ConnectOptions:
    """The options of connecting. A scheme that has no use for one ignores it."""

    ssl_context: ssl.SSLContext | None = None
    headers: tuple[tuple[str, str], ...] = ()
    """Those of the request that opens a connection over HTTP."""
    limits: Limits = attrs.field(factory=Limits)
    time_limit: ConnectTimeout = UNLIMITED


@attrs.frozen
class AcceptOptions:
    """The options of the handshake of an accepted connection. A scheme that has no use for one ignores it."""

    limits: Limits = attrs.field(factory=Limits)
    origins: Origins = OWN
    """The origins of pages that may open a WebSocket."""


class SharedConnection(Protocol):
    """A connection to a server that carries many transports, each a connection of its own to those who use it."""

    def open(self, endpoint: Endpoint, options: ConnectOptions) -> AbstractAsyncContextManager[Transport]:
        """Open a transport for the block. Raise ``OSError`` and ``BrokenResourceError``."""
        ...


@attrs.frozen
class LoadedLate:
    """A function that is imported when it is called: programs that use TCP start without what others need."""

    module: str
    name: str

    def __call__(self, *arguments: object) -> Any:
        """Import the function, call it, and return its result."""
        return getattr(import_module(self.module), self.name)(*arguments)


@attrs.frozen(kw_only=True)
class Scheme:
    """One transport: how its URIs are read and written, how it connects and listens, and what it can do.

    A stream that was dialled or accepted, and encrypted where the scheme ``uses_tls``, is a connection of
    length-prefixed frames, unless ``upgrade``, or ``share`` and ``accept_shared``, say what comes first.
    """

    name: str
    """The word before ``separator``; other ``spellings`` mean the same."""
    separator: str = "://"
    parse: Callable[[str, str, str], Endpoint]
    """Return the endpoint of a URI, a name, and the text behind ``separator``. Raise ``ValueError``."""
    dial: Callable[[Endpoint], Awaitable[Carrier]]
    """Connect. Raise ``OSError``."""
    listen: Callable[[Endpoint, ListenOptions], Awaitable[tuple[Endpoint, Sequence[AnyListener]]]]
    """Bind. Return the endpoint that clients connect to, and the listeners. Raise ``OSError``."""
    attend: Callable[..., AbstractAsyncContextManager[Transport]] | None = None
    """Run what a dialled or accepted transport needs beside it, for the block. Arguments: the transport, ``Limits``."""
    upgrade: Callable[..., AbstractAsyncContextManager[Transport]] | None = None
    """Open a transport over a stream, for an endpoint, its ``Handshake``, and ``ConnectOptions`` or ``AcceptOptions``.
    Raise ``HandshakeFailed``.
    """
    share: Callable[..., AbstractAsyncContextManager[SharedHttp2]] | None = None
    """Begin to share a stream, with the arguments of ``upgrade``, and keep to the options' ``time_limit``."""
    accept_shared: Callable[..., AbstractAsyncContextManager[AcceptedHttp2]] | None = None
    """The same at the server, with ``AcceptOptions``."""
    spellings: tuple[str, ...] = ()
    default_port: int = 0
    has_path: bool = False
    """True if a URI has a path, and the request that opens a connection carries headers."""
    uses_tls: bool = False
    alpn: tuple[str, ...] = ()
    """The protocols that TLS has to agree on, where it has to agree on one."""
    alpn_refusal: bytes = b""
    """The answer of a server to a client that agreed on none of them."""
    extra: tuple[str, str] | None = None
    """A module that it needs, and the extra of this package that brings it."""
    is_local: bool = False
    """True if it ends at the border of the process, so that worker processes can't share its listeners."""

    @property
    def needs_handshake(self) -> bool:
        """Return whether TLS or HTTP comes before the first frame, or a task runs beside."""
        return self.uses_tls or self.upgrade is not None or self.share is not None or self.attend is not None

    def check_extra(self) -> None:
        """Raise ``ModuleNotFoundError`` with the command that installs what is missing."""
        if self.extra is not None and find_spec(self.extra[0]) is None:
            module, extra = self.extra
            raise ModuleNotFoundError(
                f"{self.name}:// needs the module {module}: {install_command(extra)}", name=module
            )

    def handshake(self, endpoint: Endpoint, stream: trio.abc.Stream) -> Handshake:
        """Return what is known of a peer before its first byte."""
        address = stream.peer_address if isinstance(stream, SocketStream) else str(endpoint)
        return Handshake(transport=self.name, peer_address=address or endpoint.path)

    def transport(self, endpoint: Endpoint, carrier: Carrier, first: FirstBytes | None = None) -> Transport:
        """Return a connection that needs no handshake as a transport, with the check of what a server sends first."""
        if isinstance(carrier, trio.abc.Stream):
            return ByteStreamTransport(carrier, self.handshake(endpoint, carrier), first)
        return carrier


def path_of(target: str) -> str:
    """Return the path of a request's target, without a query."""
    return target.partition("?")[0] or "/"


async def close_at_once(carrier: Carrier) -> None:
    """Close a connection without waiting for its peer."""
    await trio.aclose_forcefully(cast("trio.abc.AsyncResource", carrier))


REGISTRY: Final[dict[str, Scheme]] = {}
"""The schemes by their names."""
SPELLINGS: Final[dict[str, str]] = {}
"""The words that may stand before ``://``, and the name of each."""


def register(scheme: Scheme) -> None:
    """Add a transport: its URIs can be served and connected to from now on."""
    REGISTRY[scheme.name] = scheme
    SPELLINGS.update((word, scheme.name) for word in (scheme.name, *scheme.spellings))
    parse_uri.cache_clear()


@lru_cache(maxsize=256)
def parse_uri(uri: str) -> Endpoint:
    """Return the endpoint that a URI names.

    ::

        tcp://host:port     tls://host:port (also tcp+tls)     unix:///path
        ws://host:port/path     wss://host:port/path
        h2://host:port/path     h2s://host:port/path
        memory://name
        aeron:udp?endpoint=host:port     aeron:ipc

    Raise ``ValueError`` with the URI and its fault.
    """
    written, _, rest = uri.partition(":")
    name = SPELLINGS.get(written.lower())
    separator = "://" if name is None else REGISTRY[name].separator
    if not uri.startswith(separator, len(written)):
        raise ValueError(f"{uri!r}: not a URI like tcp://host:port")
    rest = uri[len(written) + len(separator) :]
    if name is None:
        raise ValueError(f"{uri!r}: unknown scheme {written!r}, known are {', '.join(SPELLINGS)}")
    if " " in rest or not rest.isprintable():
        raise ValueError(f"{uri!r}: has spaces or control characters")
    return REGISTRY[name].parse(uri, name, rest)


def parse_name(uri: str, scheme: str, rest: str) -> Endpoint:
    """Return the endpoint of a URI whose rest is a name."""
    if not rest or "/" in rest:
        raise ValueError(f"{uri!r}: a name is needed, as in {scheme}://name")
    return Endpoint(scheme, host=rest)


def parse_path(uri: str, scheme: str, rest: str) -> Endpoint:
    """Return the endpoint of a URI whose rest is an absolute path."""
    if not rest.startswith("/") or rest.endswith("/"):
        raise ValueError(f"{uri!r}: an absolute path is needed, as in {scheme}:///run/name.sock")
    return Endpoint(scheme, path=rest)


def parse_address(uri: str, scheme: str, rest: str) -> Endpoint:
    """Return the endpoint of a URI whose rest is a host, a port, and where the scheme has one a path."""
    cut = min((rest.index(mark) for mark in "/?#" if mark in rest), default=len(rest))
    authority, path = rest[:cut], rest[cut:]
    if "#" in path:
        raise ValueError(f"{uri!r}: a fragment (#) names nothing here")
    row = REGISTRY[scheme]
    if not row.has_path:
        if path.strip("/"):
            raise ValueError(f"{uri!r}: {scheme} has no path")
        path = ""
    elif path.startswith("?"):
        path = "/" + path
    if "@" in authority:
        raise ValueError("a URI with '@' in its host: user names and passwords do not belong into it")
    host, port = parse_host_and_port(uri, authority, f"{scheme}://host:7878", row.default_port)
    return Endpoint(scheme, host, port, path)


def parse_host_and_port(uri: str, authority: str, example: str, default_port: int = 0) -> tuple[str, int]:
    """Return host and port of ``host:port``. Raise ``ValueError`` with the URI and its fault, or an example."""
    if authority.startswith("["):
        host, bracket, after = authority[1:].partition("]")
        if not bracket or (after and not after.startswith(":")):
            raise ValueError(f"{uri!r}: an IPv6 address looks like [::1]:7878")
        try:
            ipaddress.IPv6Address(host)
        except ValueError:
            raise ValueError(f"{uri!r}: {host!r} is not an IPv6 address") from None
        port = after[1:]
    else:
        host, _, port = authority.partition(":")
        if ":" in port:
            raise ValueError(f"{uri!r}: an IPv6 address needs brackets, as in [::1]:7878")
        if not host:
            raise ValueError(f"{uri!r}: the host is missing, 0.0.0.0 or [::] means every address")
    if not port and default_port:
        return host, default_port
    if not port:
        raise ValueError(f"{uri!r}: the port is missing, as in {example}")
    if not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ValueError(f"{uri!r}: port {port!r} is not a number from 0 to 65535")
    return host, int(port)


async def _listen_tcp(endpoint: Endpoint, options: ListenOptions) -> tuple[Endpoint, Sequence[AnyListener]]:
    listeners = await bind_tcp(endpoint.host, endpoint.port, shares_ipv4=options.shares_ipv4)
    return attrs.evolve(endpoint, port=listeners[0].socket.getsockname()[1]), listeners


async def _listen_unix(endpoint: Endpoint, options: ListenOptions) -> tuple[Endpoint, Sequence[AnyListener]]:
    return endpoint, [bind_unix(endpoint.path, options.unix_mode)]


TCP = Scheme(
    name="tcp", parse=parse_address, dial=lambda endpoint: open_tcp(endpoint.host, endpoint.port), listen=_listen_tcp
)
TLS = attrs.evolve(TCP, name="tls", spellings=("tcp+tls",), uses_tls=True)
UNIX = Scheme(name="unix", parse=parse_path, dial=lambda endpoint: open_unix(endpoint.path), listen=_listen_unix)
WS = attrs.evolve(
    TCP,
    name="ws",
    default_port=80,
    has_path=True,
    upgrade=LoadedLate("rsocket_trio.transports.websocket.transport", "open_websocket"),
)
WSS = attrs.evolve(WS, name="wss", default_port=443, uses_tls=True)
MEMORY = Scheme(
    name="memory",
    parse=parse_name,
    dial=LoadedLate("rsocket_trio.transports.memory", "dial"),
    listen=LoadedLate("rsocket_trio.transports.memory", "listen"),
    is_local=True,
)
H2 = attrs.evolve(
    TCP,
    name="h2",
    default_port=80,
    has_path=True,
    extra=("h2", "http2"),
    share=LoadedLate("rsocket_trio.transports.http2.http2_handshake", "share_http2"),
    accept_shared=LoadedLate("rsocket_trio.transports.http2.http2_handshake", "accept_http2"),
)
H2S = attrs.evolve(H2, name="h2s", default_port=443, uses_tls=True, alpn=("h2",), alpn_refusal=HTTP_2_REFUSAL)
AERON = Scheme(
    name="aeron",
    separator=":",
    extra=("cffi", "aeron"),
    parse=LoadedLate("rsocket_trio.transports.aeron.channels", "parse_channel"),
    dial=LoadedLate("rsocket_trio.transports.aeron.aeron_handshake", "dial"),
    listen=LoadedLate("rsocket_trio.transports.aeron.aeron_handshake", "listen"),
    attend=LoadedLate("rsocket_trio.transports.aeron.aeron_handshake", "attended"),
    is_local=True,
)
for _each in (TCP, TLS, UNIX, WS, WSS, H2, H2S, MEMORY, AERON):
    register(_each)
