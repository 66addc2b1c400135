"""Services: typed handlers and clients, contracts, codecs, credentials, and streams that serve many users.

The names are loaded with the first use of each; codecs load their libraries when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rsocket_trio.codecs import BYTES, CBOR, JSON, MESSAGEPACK, TEXT, Codec, DecodeError
    from rsocket_trio.metadata.authentication import BearerAuthentication as Bearer
    from rsocket_trio.metadata.authentication import SimpleAuthentication as Simple
    from rsocket_trio.metadata.tracing import Trace
    from rsocket_trio.services.broadcast import Broadcast, Policy, Subscription, TooSlow
    from rsocket_trio.services.call_context import Call, current_call, current_user
    from rsocket_trio.services.contracts import (
        Service,
        fire_and_forget,
        request_channel,
        request_response,
        request_stream,
    )
    from rsocket_trio.services.description import Route
    from rsocket_trio.services.file_transfer import Chunks, FileTransferError, chunks, inside, save
    from rsocket_trio.services.typed_streams import Receiving, Stream, TypedChannel

_HOMES = {
    "codecs": ("BYTES", "CBOR", "JSON", "MESSAGEPACK", "TEXT", "Codec", "DecodeError"),
    "metadata.authentication": ("BearerAuthentication", "SimpleAuthentication"),
    "metadata.tracing": ("Trace",),
    "services.broadcast": ("Broadcast", "Policy", "Subscription", "TooSlow"),
    "services.call_context": ("Call", "current_call", "current_user"),
    "services.contracts": ("Service", "fire_and_forget", "request_channel", "request_response", "request_stream"),
    "services.description": ("Route",),
    "services.file_transfer": ("Chunks", "FileTransferError", "chunks", "inside", "save"),
    "services.typed_streams": ("Receiving", "Stream", "TypedChannel"),
}
"""The modules of the public names."""
_SHORT = {"BearerAuthentication": "Bearer", "SimpleAuthentication": "Simple"}
"""Names that are other ones here."""
_PLACES = {_SHORT.get(name, name): (home, name) for home, names in _HOMES.items() for name in names}

__all__ = [
    "BYTES",
    "CBOR",
    "JSON",
    "MESSAGEPACK",
    "TEXT",
    "Bearer",
    "Broadcast",
    "Call",
    "Chunks",
    "Codec",
    "DecodeError",
    "FileTransferError",
    "Policy",
    "Receiving",
    "Route",
    "Service",
    "Simple",
    "Stream",
    "Subscription",
    "TooSlow",
    "Trace",
    "TypedChannel",
    "chunks",
    "current_call",
    "current_user",
    "fire_and_forget",
    "inside",
    "request_channel",
    "request_response",
    "request_stream",
    "save",
]


def __getattr__(name: str) -> object:
    """Load a public name."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home, its = _PLACES[name]
    found = globals()[name] = getattr(import_module(f"rsocket_trio.{home}"), its)
    return found


def __dir__() -> list[str]:
    """The public names, and what every module has."""
    return sorted({*globals(), *_PLACES})
