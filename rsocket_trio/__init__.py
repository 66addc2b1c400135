"""RSocket for Trio: request/response, streams and channels with back-pressure, cancellation and leases.

Each name is loaded when it is first asked for, with the modules that it needs: a client loads no server. The command
line begins in this package, and has Ctrl-C in its hands before it loads anything that takes time.
"""

from __future__ import annotations

from rsocket_trio import late_names

TYPE_CHECKING = False  # as type checkers take it; to import typing takes longer than all that is here
if TYPE_CHECKING:
    # A name imported as itself is exported to type checkers.
    # isort: off
    from rsocket_trio.client.forwarding import forwarding as forwarding
    from rsocket_trio.client.open import (
        open_connection as open_connection,
        open_connection_over as open_connection_over,
    )
    from rsocket_trio.client.pool import Pool as Pool, open_pool as open_pool
    from rsocket_trio.client.reconnecting import (
        ReconnectingClient as ReconnectingClient,
        connect_forever as connect_forever,
    )
    from rsocket_trio.connection.connection import Connection as Connection, current_connection as current_connection
    from rsocket_trio.connection.streams import Channel as Channel, Incoming as Incoming, Outgoing as Outgoing
    from rsocket_trio.errors import *  # noqa: F403 - of all errors those that users meet
    from rsocket_trio.limits import Limits as Limits
    from rsocket_trio.metadata.authentication import Credentials as Credentials
    from rsocket_trio.payload import MetadataPush as MetadataPush, Payload as Payload, PayloadLike as PayloadLike
    from rsocket_trio.responder import Responder as Responder
    from rsocket_trio.server.serve import run as run, serve as serve, serve_stream as serve_stream
    from rsocket_trio.services.calls.context import (
        Call as Call,
        current_call as current_call,
        current_user as current_user,
    )
    from rsocket_trio.streamux.negotiation import StreamuxOptions as StreamuxOptions
    from rsocket_trio.terms import (
        Backoff as Backoff,
        Keepalive as Keepalive,
        Lease as Lease,
        ResumeOptions as ResumeOptions,
        Setup as Setup,
    )
    from rsocket_trio.transports.connect import open_shared as open_shared

del TYPE_CHECKING

__version__ = "0.2.0"

_HOMES = {
    "client.forwarding": "forwarding",
    "client.open": "open_connection, open_connection_over",
    "client.pool": "Pool, open_pool",
    "client.reconnecting": "ReconnectingClient, connect_forever",
    "connection.connection": "Connection, current_connection",
    "connection.streams": "Channel, Incoming, Outgoing",
    "errors": (
        "ApplicationError, Canceled, ConnectionClosed, ConnectionLost, Drained, Invalid, InvalidSetup, "
        "LocalProtocolError, NegotiationFailed, ProtocolError, Rejected, RejectedResume, RejectedSetup, "
        "RemoteProtocolError, RSocketError, SetupError, StreamError, Unsupported, UnsupportedSetup"
    ),
    "limits": "Limits",
    "metadata.authentication": "Credentials",
    "payload": "MetadataPush, Payload, PayloadLike",
    "responder": "Responder",
    "server.serve": "run, serve, serve_stream",
    "services.calls.context": "Call, current_call, current_user",
    "streamux.negotiation": "StreamuxOptions",
    "terms": "Backoff, Keepalive, Lease, ResumeOptions, Setup",
    "transports.connect": "open_shared",
}
"""The modules of the public names."""

__all__ = list(late_names.public_names(_HOMES))  # pyright: ignore[reportUnsupportedDunderAll]

# Users meet these names here, so that is where errors and documentation say that they live.
__getattr__, __dir__ = late_names.loaders(__name__, _HOMES, as_own=True)
