"""All attacks, in the order of the bars."""

from __future__ import annotations

from qa.attacks import aeron, beginnings, floods, multiplexing, payloads, streams, typed
from qa.attacks.harness import Attack

ATTACKS: list[Attack] = [
    *beginnings.ATTACKS,
    *payloads.ATTACKS,
    *typed.ATTACKS,
    *streams.ATTACKS,
    *floods.ATTACKS,
    *multiplexing.ATTACKS,
    *aeron.ATTACKS,
]
