"""The former name of ``rsocket_trio.analytics``, kept for one release."""

from __future__ import annotations

from rsocket_trio.analytics import *  # noqa: F403
