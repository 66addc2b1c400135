"""Services: typed handlers and clients, contracts, codecs, credentials, and streams that serve many users.

The names are loaded with the first use of each; codecs load their libraries when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rsocket_trio import late_names

if TYPE_CHECKING:
    from rsocket_trio.codecs import BYTES, CBOR, JSON, MESSAGEPACK, TEXT, Codec, DecodeError
    from rsocket_trio.connection.typed_streams import Receiving, Stream, TypedChannel
    from rsocket_trio.metadata.authentication import BearerAuthentication as Bearer
    from rsocket_trio.metadata.authentication import SimpleAuthentication as Simple
    from rsocket_trio.metadata.tracing import Trace
    from rsocket_trio.services.broadcast import Broadcast, Policy, Subscription, TooSlow
    from rsocket_trio.services.calls.context import Call, current_call, current_user
    from rsocket_trio.services.contracts import (
        Service,
        fire_and_forget,
        request_channel,
        request_response,
        request_stream,
    )
    from rsocket_trio.services.description import Route
    from rsocket_trio.services.file_transfer import Chunks, FileTransferError, chunks, inside, save

_HOMES = {
    "codecs": "BYTES, CBOR, JSON, MESSAGEPACK, TEXT, Codec, DecodeError",
    "metadata.authentication": "BearerAuthentication as Bearer, SimpleAuthentication as Simple",
    "metadata.tracing": "Trace",
    "services.broadcast": "Broadcast, Policy, Subscription, TooSlow",
    "services.calls.context": "Call, current_call, current_user",
    "services.contracts": "Service, fire_and_forget, request_channel, request_response, request_stream",
    "services.description": "Route",
    "services.file_transfer": "Chunks, FileTransferError, chunks, inside, save",
    "connection.typed_streams": "Receiving, Stream, TypedChannel",
}
"""The modules of the public names."""

__all__ = ["BYTES", "CBOR", "JSON", "MESSAGEPACK", "TEXT", "Codec", "DecodeError"]
__all__ += ["Bearer", "Call", "Simple", "Trace", "current_call", "current_user"]
__all__ += ["Broadcast", "Policy", "Subscription", "TooSlow"]
__all__ += ["Chunks", "FileTransferError", "chunks", "inside", "save"]
__all__ += ["Receiving", "Route", "Service", "Stream", "TypedChannel"]
__all__ += ["fire_and_forget", "request_channel", "request_response", "request_stream"]

__getattr__, __dir__ = late_names.loaders(__name__, _HOMES)
