"""The dialects that this package speaks, each described by its differences from a neighbouring one."""

from __future__ import annotations

from typing import Final

import attrs

from rsocket_trio.mux.stream_state import Interaction
from rsocket_trio.rsocket.codec import UINT31_MAX, UINT63_MAX, Codec
from rsocket_trio.rsocket.dialect import Dialect, ExtensionRules

# A program loads the layouts of the dialects that it speaks: each with the first connection, or client, of its dialect.


def _codec_1_0() -> Codec:
    from rsocket_trio.rsocket.layouts.v1_0 import CODEC

    return CODEC


def _codec_0_2() -> Codec:
    from rsocket_trio.rsocket.layouts.v0_2 import CODEC

    return CODEC


def _codec_0_1() -> Codec:
    from rsocket_trio.rsocket.layouts.v0_1 import CODEC

    return CODEC


def _codec_0_0() -> Codec:
    from rsocket_trio.rsocket.layouts.v0_0 import CODEC

    return CODEC


def _codec_2_0_draft() -> Codec:
    from rsocket_trio.rsocket.layouts.v2_0_draft import CODEC

    return CODEC


def _rules_2_0_draft() -> ExtensionRules:
    from rsocket_trio.rsocket.extensions import terms

    return terms


# The clauses are named in the order of the fields. RSOCKET_1_0 is the default; others are described by how they differ.
RSOCKET_1_0: Final = Dialect(
    name="rsocket/1.0",
    major=1,
    minor=0,  # RS10-GEN-05
    layout=_codec_1_0,
    framing="u24",  # RS10-FRM-03
    interactions=frozenset(Interaction) - {Interaction.REQUEST_SUBSCRIPTION},
    client_first_id=1,  # RS10-SID-03
    server_first_id=2,  # RS10-SID-04
    last_id=UINT31_MAX,
    id_reuse=True,  # RS10-SID-07
    half_close=True,  # RS10-SEQ-06, RS10-SEQ-10
    bad_metadata_ignored=False,  # RS10-MD-02
    bare_payload_is_item=False,  # RS10-PAY-03
    request_continues=False,  # RS10-FRAG-04, RS10-UNX-09
    strict=False,  # RS10-SETUP-03
    lease_refusal="no lease for this request",  # RS10-LS-02
    resumes=True,  # RS10-RSM-01
    # rsocket-js 1.0.0-alpha.3 swaps major and minor in RESUME, and in RESUME only. No version 0.1 has this layout, so
    # nothing else is ever meant by it; the token says whether there is such a session.
    resume_versions=frozenset({(0, 1)}),
)

REACTIVESOCKET_0_2: Final = attrs.evolve(
    RSOCKET_1_0,
    name="reactivesocket/0.2",
    major=0,
    minor=2,  # RS02-GEN-01
    layout=_codec_0_2,
    id_reuse=False,  # RS02-SID-05
    half_close=False,  # RS02-SEQ-04
    bad_metadata_ignored=True,  # RS02-MD-02
    bare_payload_is_item=True,  # RS02-PAY-03, RS02-PAY-04
    request_continues=True,  # RS02-FRAG-03
    parity_is_learnt=True,  # ALL-RCT-12
    strict=True,  # RS02-SETUP-03
    free_mimes=True,  # RS02-SETUP-05, RS01-SETUP-04
    lease_refusal="LEASE_ERROR: no lease for this request",  # RS02-ERR-09
    resume_versions=frozenset(),
)

REACTIVESOCKET_0_1: Final[Dialect] = attrs.evolve(
    REACTIVESOCKET_0_2,
    name="reactivesocket/0.1",
    major=0,
    minor=1,  # RS01-GEN-01
    layout=_codec_0_1,
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
    resumes=False,
    refusals=range(0x001, 0x100),  # RS01-ERR-08
    keepalive_accepts=False,  # RS01-CON-14
    requester_fails=False,  # RS01-SEQ-13
    bare_complete_is_no_item=True,  # RS01-RSP-03
    zero_completes=True,  # Java 0.2.2 writes so
    requester_responds=True,  # Java 0.5.2 does
    whole_versions=frozenset({(0, 0), (0, 2)}),  # none of the peers that announce them joins fragments
    flags_counts=True,  # Go reads no number without it, and Java sets it
    versions=frozenset({(0, 1), (0, 0), (0, 2)}),  # RS01-SETUP-10
    lengths_are_learnt=True,  # RS01-HDR-01
    has_lifetime=False,  # RS01-SETUP-09
    metadata_header=4,  # RS01-MD-03
    request_n_field=4,  # RS01-STR-01
)

REACTIVESOCKET_0_0: Final[Dialect] = attrs.evolve(
    REACTIVESOCKET_0_1,
    name="reactivesocket/0.0",
    major=0,
    minor=0,  # RS00-HDR-07
    layout=_codec_0_0,
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
    announces_drain=False,  # RS00-ERR-01
    versions=None,  # RS00-HDR-12
    lengths_are_learnt=False,  # RS00-HDR-02
    has_lifetime=False,  # RS00-SETUP-02
    ids_have_parity=False,  # RS00-SID-04
    parity_is_learnt=False,
    implicit_lease=True,  # RS00-CON-06
    refusals=range(2**32),  # RS00-SERR-02
    errors_have_scopes=True,  # RS00-ERR-01, RS00-SERR-01
    bare_complete_is_no_item=True,  # RS00-RSP-03
    zero_completes=False,
    requester_responds=False,
    whole_versions=frozenset(),
    flags_counts=False,
    metadata_types=True,  # RS00-MD-04
    pushes_on_streams=True,  # RS00-MP-02
    setup_codes={0x001: 0x0001, 0x002: 0x0010, 0x003: 0x0100, 0x004: 0x0100},  # RS00-SERR-03
    request_n_field=8,  # RS00-STR-01
)


RSOCKET_2_0_DRAFT: Final = attrs.evolve(
    RSOCKET_1_0,
    name="rsocket/2.0-draft",
    major=2,
    minor=0,  # RSX-GAP-16
    layout=_codec_2_0_draft,
    load_extensions=_rules_2_0_draft,
    has_lifetime=False,  # RSX-KA-06
    entries=True,  # RSX-SETUP-02, RSX-REQ-01, RSX-EXT-02
    mime_fields=True,  # RSX-MIME-01, RSX-GAP-10
    resume_versions=frozenset(),
)

DIALECTS: Final[dict[str, Dialect]] = {
    dialect.name: dialect
    for dialect in (RSOCKET_1_0, REACTIVESOCKET_0_2, REACTIVESOCKET_0_1, REACTIVESOCKET_0_0, RSOCKET_2_0_DRAFT)
}
ALL: Final[tuple[str, ...]] = tuple(DIALECTS)


def dialect_named(name: str) -> Dialect:
    """Return the dialect of that name. Raise ``ValueError`` for an unknown name."""
    try:
        return DIALECTS[name]
    except KeyError:
        raise ValueError(f"dialect {name!r}: the known ones are {', '.join(ALL)}") from None


def spoken(dialect: Dialect) -> Dialect:
    """Return the dialect as sessions write it: with flags beyond its document that peers ignore or need."""
    if not dialect.flags_counts:
        return dialect

    def flagging_codec() -> Codec:
        from rsocket_trio.rsocket.layouts.v0_1_quirks import flagging_counts

        return flagging_counts(dialect.codec)

    return attrs.evolve(dialect, layout=flagging_codec)
