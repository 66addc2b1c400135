"""All attacks: importing a module adds its own."""

from __future__ import annotations

from qa.attacks import aeron, beginnings, floods, multiplexing, payloads, streams, typed  # noqa: F401
from qa.attacks.harness import ATTACKS

__all__ = ["ATTACKS"]
