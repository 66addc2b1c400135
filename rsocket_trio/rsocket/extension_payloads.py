"""The former name of ``rsocket_trio.rsocket.extensions.payloads``, kept for one release, gone in 0.2."""

from __future__ import annotations

from rsocket_trio.rsocket.extensions.payloads import *  # noqa: F403
