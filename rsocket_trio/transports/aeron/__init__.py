"""Transport over Aeron: UDP and shared memory, by Aeron's own C library."""

from __future__ import annotations

from rsocket_trio.transports.aeron.media_driver import MediaDriver, open_media_driver

__all__ = ["MediaDriver", "open_media_driver"]
