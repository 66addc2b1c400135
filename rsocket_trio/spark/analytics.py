"""The former name of ``rsocket_trio.analytics``, kept for one release, gone in 0.2."""

from __future__ import annotations

from rsocket_trio.analytics import *  # noqa: F403
