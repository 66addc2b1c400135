"""The public names, from where they are defined: ``rsocket_trio`` has them from here."""

from __future__ import annotations

from rsocket_trio.client.open import open_connection, open_connection_over
from rsocket_trio.client.reconnecting import ReconnectingClient, connect_forever
from rsocket_trio.connection.connection import Connection, current_connection
from rsocket_trio.connection.streams import Channel, Incoming, Outgoing
from rsocket_trio.errors import (
    ApplicationError,
    Canceled,
    ConnectionClosed,
    ConnectionLost,
    Drained,
    Invalid,
    InvalidSetup,
    LocalProtocolError,
    NegotiationFailed,
    ProtocolError,
    Rejected,
    RejectedResume,
    RejectedSetup,
    RemoteProtocolError,
    RSocketError,
    SetupError,
    StreamError,
    Unsupported,
    UnsupportedSetup,
)
from rsocket_trio.limits import Limits
from rsocket_trio.metadata.authentication import Credentials
from rsocket_trio.payload import MetadataPush, Payload, PayloadLike
from rsocket_trio.responder import Responder
from rsocket_trio.server.serve import run, serve, serve_stream
from rsocket_trio.services.call_context import Call, current_call, current_user
from rsocket_trio.streamux.options import StreamuxOptions
from rsocket_trio.terms import Backoff, Keepalive, Lease, ResumeOptions, Setup
from rsocket_trio.transports.connect import open_shared

__all__ = [
    "ApplicationError",
    "Backoff",
    "Call",
    "Canceled",
    "Channel",
    "Connection",
    "ConnectionClosed",
    "ConnectionLost",
    "Credentials",
    "Drained",
    "Incoming",
    "Invalid",
    "InvalidSetup",
    "Keepalive",
    "Lease",
    "Limits",
    "LocalProtocolError",
    "MetadataPush",
    "NegotiationFailed",
    "Outgoing",
    "Payload",
    "PayloadLike",
    "ProtocolError",
    "RSocketError",
    "ReconnectingClient",
    "Rejected",
    "RejectedResume",
    "RejectedSetup",
    "RemoteProtocolError",
    "Responder",
    "ResumeOptions",
    "Setup",
    "SetupError",
    "StreamError",
    "StreamuxOptions",
    "Unsupported",
    "UnsupportedSetup",
    "connect_forever",
    "current_call",
    "current_connection",
    "current_user",
    "open_connection",
    "open_connection_over",
    "open_shared",
    "run",
    "serve",
    "serve_stream",
]


def _show_names_at_the_top() -> None:
    """Users meet these names in ``rsocket_trio``, so that is where errors and documentation say that they live."""
    for name in __all__:
        if isinstance(globals()[name], type):
            globals()[name].__module__ = "rsocket_trio"


_show_names_at_the_top()
