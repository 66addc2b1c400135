"""The extension draft as a dialect: RSocket 1.0 with what the draft replaces (RSX-GEN-02)."""

from __future__ import annotations

from typing import Final

import attrs

from rsocket_trio.rsocket import layout_2_0_draft
from rsocket_trio.rsocket.dialects import RSOCKET_1_0

RSOCKET_2_0_DRAFT: Final = attrs.evolve(
    RSOCKET_1_0,
    name="rsocket/2.0-draft",
    major=2,
    minor=0,  # RSX-GAP-16
    codec=layout_2_0_draft.CODEC,
)
