"""All attacks, in the order of the bars."""

from __future__ import annotations

from tests.attacks import beginnings, floods, payloads, streams
from tests.attacks.harness import Attack

ATTACKS: list[Attack] = [*beginnings.ATTACKS, *payloads.ATTACKS, *streams.ATTACKS, *floods.ATTACKS]
