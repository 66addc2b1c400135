"""Services: typed handlers and clients, and what surrounds each call."""

from __future__ import annotations

from rsocket_trio.codecs import BYTES, CBOR, JSON, MESSAGEPACK, TEXT, Codec, DecodeError
from rsocket_trio.services.broadcast import Broadcast, Policy, Subscription, TooSlow
from rsocket_trio.services.file_transfer import Chunks, FileTransferError, chunks, inside, save

__all__ = [
    "BYTES",
    "CBOR",
    "JSON",
    "MESSAGEPACK",
    "TEXT",
    "Broadcast",
    "Chunks",
    "Codec",
    "DecodeError",
    "FileTransferError",
    "Policy",
    "Subscription",
    "TooSlow",
    "chunks",
    "inside",
    "save",
]
