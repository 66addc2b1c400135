"""The former name of ``rsocket_trio.loadgen``, kept for one release, gone in 0.2."""

from __future__ import annotations

from rsocket_trio.loadgen import *  # noqa: F403
