"""The former name of ``rsocket_trio.loadgen``, kept for one release."""

from __future__ import annotations

from rsocket_trio.loadgen import *  # noqa: F403
