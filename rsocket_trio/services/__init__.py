"""Services: typed handlers and clients, and what surrounds each call."""

from __future__ import annotations

from rsocket_trio.services.broadcast import Broadcast, Policy, Subscription, TooSlow
from rsocket_trio.services.file_transfer import Chunks, FileTransferError, chunks, inside, save

__all__ = ["Broadcast", "Chunks", "FileTransferError", "Policy", "Subscription", "TooSlow", "chunks", "inside", "save"]
