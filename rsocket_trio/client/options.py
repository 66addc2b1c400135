"""The keyword arguments of a client's connection: each name, type and default, declared once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Generic, TypedDict, TypeVar

from rsocket_trio.limits import Limits
from rsocket_trio.metadata.mime import COMPOSITE_METADATA, OCTET_STREAM
from rsocket_trio.payload import EMPTY
from rsocket_trio.terms import Keepalive, ResumeOptions
from rsocket_trio.transports.base import CONNECT_TIMEOUT
from rsocket_trio.values import UnsaidNumber, UnsaidText

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterable

    from rsocket_trio.codecs import Codec
    from rsocket_trio.connection.recording import CaptureLike
    from rsocket_trio.metadata.authentication import Auth
    from rsocket_trio.responder import Responder
    from rsocket_trio.services.calls.context import Interceptor
    from rsocket_trio.streamux.negotiation import StreamuxOptions
    from rsocket_trio.transports.schemes import SharedConnection

DIALECT = UnsaidText("rsocket/1.0")
DATA_MIME = UnsaidText(OCTET_STREAM)
METADATA_MIME = UnsaidText(COMPOSITE_METADATA)
FRAGMENT_SIZE = UnsaidNumber(65536)
"""Bytes of an outbound frame by default."""
KEEPALIVE = Keepalive(interval=20, max_lifetime=90)
"""The default: this object, not one that equals it, gives way to the needs of a peer."""
LIMITS = Limits()

SetupT = TypeVar("SetupT")
HeadersT = TypeVar("HeadersT")


class StreamOptions(TypedDict, Generic[SetupT], total=False):
    """The options of ``open_connection_over``. A reconnecting client takes functions for some of them."""

    dialect: Annotated[str, DIALECT]
    responder: Annotated[Responder | None, None]
    setup: Annotated[SetupT, EMPTY]
    data_mime: Annotated[str, DATA_MIME]
    metadata_mime: Annotated[str, METADATA_MIME]
    keepalive: Annotated[Keepalive, KEEPALIVE]
    lease: Annotated[bool, False]
    strict: Annotated[bool, False]
    resume: Annotated[ResumeOptions | None, None]
    limits: Annotated[Limits, LIMITS]
    fragment_size: Annotated[int, FRAGMENT_SIZE]
    quirks: Annotated[Iterable[str], ()]
    peer: Annotated[str | None, None]
    extension_entries: Annotated[Iterable[object], ()]
    streamux: Annotated[StreamuxOptions | None, None]
    capture: Annotated[CaptureLike | None, None]
    codecs: Annotated[Iterable[Codec] | None, None]
    around: Annotated[Iterable[Interceptor], ()]
    auth: Annotated[Auth | None, None]
    deadlines: Annotated[bool, False]
    connect_timeout: Annotated[float, CONNECT_TIMEOUT]


class ConnectionOptions(StreamOptions[SetupT], Generic[SetupT, HeadersT], total=False):
    """The options of ``open_connection``: those above, and those of the transport that it opens."""

    ssl_context: Annotated[ssl.SSLContext | None, None]
    headers: Annotated[HeadersT, ()]
    over: Annotated[SharedConnection | None, None]
