"""The frame layout of ReactiveSocket 0.2: the table of RSocket 1.0 with some rows replaced.

SETUP has a strict flag (RS02-SETUP-03), ERROR and CANCEL may have metadata (RS02-ERR-01, RS02-CAN-01), metadata that
stands alone has its length too (RS02-MD-04), and a PAYLOAD may have neither NEXT nor COMPLETE (RS02-PAY-03).
"""

from __future__ import annotations

from typing import Final

from rsocket_trio.rsocket.codec import bit, rest
from rsocket_trio.rsocket.frames import CancelFrame, ErrorFrame, LeaseFrame, MetadataPushFrame, PayloadFrame, SetupFrame
from rsocket_trio.rsocket.layouts import v1_0 as layout_1_0
from rsocket_trio.rsocket.layouts.v1_0 import (
    ANY_ID,
    ERROR_CODE,
    LEASE_NUMBERS,
    PAYLOAD_FLAGS,
    SETUP_FIELDS,
    SHAPE,
    STREAM_IDS,
)

STRICT: Final = 0x020
METADATA: Final = SHAPE.metadata()


CODEC: Final = layout_1_0.CODEC.replacing(
    SHAPE.row(0x01, "SETUP", SetupFrame, *SETUP_FIELDS, bit("strict", STRICT)),
    SHAPE.row(0x02, "LEASE", LeaseFrame, LEASE_NUMBERS, METADATA),  # RS02-LEASE-01
    SHAPE.row(0x09, "CANCEL", CancelFrame, METADATA, ids=STREAM_IDS),
    # It may be bare, so that what was received so can be written again (RS02-PAY-03).
    SHAPE.row(0x0A, "PAYLOAD", PayloadFrame, SHAPE.payload, *PAYLOAD_FLAGS, ids=STREAM_IDS),
    SHAPE.row(0x0B, "ERROR", ErrorFrame, ERROR_CODE, METADATA, rest("data"), ids=ANY_ID),  # RS02-ERR-03
    # M is always set (RS02-MP-01); a frame without it is ignored, as in 0.1.
    SHAPE.row(0x0C, "METADATA_PUSH", MetadataPushFrame, SHAPE.metadata(needed=True)),
)
