"""The two dialects before 0.2, described by how they differ from it and from each other."""

from __future__ import annotations

from typing import Final

import attrs

from rsocket_trio.mux.interaction import Interaction
from rsocket_trio.rsocket import layout_0_0, layout_0_1
from rsocket_trio.rsocket.codec import UINT31_MAX, UINT63_MAX
from rsocket_trio.rsocket.dialects import REACTIVESOCKET_0_2, Dialect
from rsocket_trio.rsocket.layout_32 import METADATA_HEADER

REACTIVESOCKET_0_1: Final[Dialect] = attrs.evolve(
    REACTIVESOCKET_0_2,
    name="reactivesocket/0.1",
    major=0,
    minor=1,  # RS01-GEN-01
    codec=layout_0_1.CODEC,
    framing="u32",  # RS01-HDR-03, RS01-HDR-04
    interactions=frozenset(Interaction),  # RS01-GEN-03
    client_first_id=2,  # RS01-SID-04
    server_first_id=1,
    last_id=UINT31_MAX,  # RS01-SID-06
    id_reuse=True,  # RS01-SID-05
    bare_payload_is_item=True,  # RS01-RSP-03
    request_repeats=True,  # RS01-FRAG-02
    channel_items_are_requests=True,  # RS01-SEQ-09
    zero_initial_n_invalid=False,  # RS01-STR-02
    has_connection_close=False,  # RS01-ERR-04
    versions=frozenset({(0, 1), (0, 0), (0, 2)}),  # RS01-SETUP-10
    has_lifetime=False,  # RS01-SETUP-09
    metadata_header=METADATA_HEADER,  # RS01-MD-03
    request_n_field=layout_0_1.SHAPE.count.size,  # RS01-STR-01
)

REACTIVESOCKET_0_0: Final[Dialect] = attrs.evolve(
    REACTIVESOCKET_0_1,
    name="reactivesocket/0.0",
    major=0,
    minor=0,  # RS00-HDR-07
    codec=layout_0_0.CODEC,
    framing="u32",  # RS00-HDR-03, RS00-HDR-04
    interactions=frozenset(Interaction) - {Interaction.REQUEST_CHANNEL},  # RS00-TYP-01
    client_first_id=2,  # RS00-SID-05
    server_first_id=1,
    last_id=UINT63_MAX,
    bad_metadata_ignored=True,  # RS00-MD-08
    request_continues=False,  # RS00-FRAG-02
    request_fragments=False,
    channel_items_are_requests=False,
    strict=False,  # RS00-SETUP-03
    zero_initial_n_invalid=False,  # RS00-RQN-03
    has_connection_error=False,  # RS00-SERR-03
    versions=None,  # RS00-HDR-12
    has_lifetime=False,  # RS00-SETUP-02
    ids_have_parity=False,  # RS00-SID-04
    implicit_lease=True,  # RS00-CON-06
    pushes_on_streams=True,  # RS00-MP-02
    setup_codes={0x001: 0x0001, 0x002: 0x0010, 0x003: 0x0100, 0x004: 0x0100},  # RS00-SERR-03
    request_n_field=layout_0_0.SHAPE.count.size,  # RS00-STR-01
)
