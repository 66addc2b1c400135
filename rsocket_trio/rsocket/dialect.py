"""The dialects: immutable records of capabilities, each described by its differences from a neighbouring one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property, partial
from importlib import import_module
from typing import TYPE_CHECKING, Final

import attrs

from rsocket_trio.errors import SETUP_ERRORS, ApplicationError, RejectedSetup, SetupError
from rsocket_trio.mux.framing import Framing24, Framing32
from rsocket_trio.mux.session import Capabilities
from rsocket_trio.mux.stream_state import Interaction
from rsocket_trio.rsocket.codec import UINT31_MAX, UINT63_MAX, Codec

if TYPE_CHECKING:
    from rsocket_trio.payload import Payload
    from rsocket_trio.rsocket.extensions.terms import ExtensionRules

NO_COUNT = bytes(4)
"""A number of items where its flag says that there is none."""


@attrs.frozen(eq=False, kw_only=True)
class Dialect(Capabilities):
    """The capabilities of a dialect that a session depends on, named by their meaning. It performs no action."""

    major: int
    minor: int
    """The version that SETUP and RESUME carry."""
    layout: Callable[[], Codec]
    """Load the codec, when it is first needed."""
    framing: type[Framing24 | Framing32]
    """The length prefix on byte streams. It bounds the frames of all transports."""
    interactions: frozenset[Interaction]
    client_first_id: int
    server_first_id: int
    last_id: int
    id_reuse: bool
    """After the last id begin again and skip ids in use, instead of refusing new streams."""
    half_close: bool
    """The responder's COMPLETE ends its own half of a channel only, and its CANCEL the requester's half."""
    bad_metadata_ignored: bool
    """A frame whose metadata does not fit is skipped, instead of being an error unless its ignore flag is set."""
    bare_payload_is_item: bool
    """A PAYLOAD without NEXT is an item if it carries anything, instead of being skipped, or the end with COMPLETE."""
    request_continues: bool
    """A request frame of the same type goes on with one that waits for fragments, instead of being skipped."""
    request_repeats: bool = False
    """Fragments of a request are frames of its own type, instead of PAYLOAD."""
    request_fragments: bool = True
    """A request may be fragmented; otherwise it travels whole or not at all."""
    channel_items_are_requests: bool = False
    """The requester of a channel sends its items as further REQUEST_CHANNEL frames."""
    channel_item_n: int | None = None
    """The number of items that each of those asks for, if it has one."""
    strict: bool
    """SETUP can ask for strict interpretation of its payload."""
    lease_refusal: str
    """The text of the REJECTED that answers a request beyond the lease."""
    zero_initial_n_invalid: bool = True
    """A request that asks for 0 items gets INVALID, instead of opening a stream without credit."""
    has_connection_error: bool = True
    """ERROR with CONNECTION_ERROR can say why this side ends the connection."""
    has_connection_close: bool = True
    """ERROR with CONNECTION_CLOSE can say that this side ends the connection."""
    announces_drain: bool = True
    """KEEPALIVE and REJECTED can say that this side takes no more requests."""
    versions: frozenset[tuple[int, int]] | None = None
    """The versions that a server takes in a SETUP; ``None``: its own only."""
    has_lifetime: bool = True
    """SETUP agrees on keepalives and a lifetime above 0; otherwise it may say nothing of them, or 0 for none."""
    ids_have_parity: bool = True
    """Client and server use odd and even ids, so that an id tells who opened the stream."""
    parity_is_learnt: bool = False
    """A server takes its client's parity from the connection's first request, and uses the other one itself."""
    client_swaps_ids: bool = False
    """A client uses the parity that is its server's, and expects the server to use the other one."""
    lengths_are_learnt: bool = False
    """A client may keep the length of byte streams in each message; its server sees that, and answers alike."""
    length_on_messages: bool = False
    """A client keeps the length of byte streams in each message, and expects it there."""
    implicit_lease: bool = False
    """With leases the SETUP itself allows the server's requests, until a LEASE of the client's restricts them."""
    pushes_on_streams: bool = False
    """METADATA_PUSH may concern one stream."""
    any_push_id: bool = False
    """METADATA_PUSH concerns the connection, whatever its stream id says."""
    whole_versions: frozenset[tuple[int, int]] = frozenset()
    """Versions whose peers join no fragments: they get payloads whole, unless the application says otherwise."""
    flags_counts: bool = False
    """Requests with a number say by a flag that it is there, though their document does not name one."""
    setup_codes: Mapping[int, int] | None = None
    """The codes on the wire of set-up errors; ``None``: unchanged."""
    refusals: range = range(0)
    """Codes on stream 0 that refuse a SETUP, whether the table knows them or not."""
    errors_have_scopes: bool = False
    """An ERROR of a stream has no code and is read with 0x201: on stream 0 it is void, as others are on a stream."""
    keepalive_accepts: bool = True
    """A KEEPALIVE of the server's shows that it accepted the SETUP."""
    requester_fails: bool = True
    """A channel's requester can fail its half with ERROR; otherwise it can only cancel."""
    bare_complete_is_no_item: bool = False
    """A completion without metadata and data carries no item, so that an empty last item goes before it."""
    zero_completes: bool = False
    """A channel item of four zero bytes that completes carries no item: they are a number without its flag."""
    requester_responds: bool = False
    """A channel's requester may end its half with an empty RESPONSE."""
    entries: bool = False
    """Terms, leases and signs of life are extension entries; SETUP can ask for an answer, requests have entries too."""
    free_mimes: bool = False
    """A MIME type may be any text that the two sides agree on; otherwise it has a slash."""
    resumes: bool = False
    """A session can go on over another transport, by RESUME and positions in bytes."""
    resume_versions: frozenset[tuple[int, int]] = frozenset()
    """Versions that a RESUME may say beside the dialect's own."""
    metadata_header: int = 3
    """Bytes that a frame pays for carrying metadata at all."""
    request_n_field: int = 4
    """Bytes of a number of items."""

    @cached_property
    def codec(self) -> Codec:
        """The codec of the frames."""
        return self.layout()

    @cached_property
    def extensions(self) -> ExtensionRules:
        """The rules of extension entries, which only a dialect with ``entries`` has."""
        from rsocket_trio.rsocket.extensions.terms import ExtensionRules

        return ExtensionRules()

    def refusal(self, code: int, data: bytes) -> SetupError | None:
        """Return the refusal in an ERROR on stream 0, or ``None``. A code that no table has keeps its number."""
        codes = self.setup_codes or {}
        for number, error in SETUP_ERRORS.items():
            if codes.get(number, number) == code:
                return error._received(number, data)
        return RejectedSetup._received(code, data) if code in self.refusals else None

    def only_completes(self, payload: Payload, initial_n: int | None = None) -> bool:
        """Return whether the last REQUEST_CHANNEL, with this payload and number, has no item (RS01-RSP-03)."""
        if payload.metadata is not None:
            return False
        return not payload.data or (self.zero_completes and initial_n is None and payload.data == NO_COUNT)

    def misplaces(self, stream_id: int, code: int) -> bool:
        """Return whether an ERROR's code does not fit its stream id, so that it is ignored."""
        return self.errors_have_scopes and (stream_id == 0) == (code == ApplicationError.default_code)


# A program loads the layouts of the dialects that it speaks: each with the first connection, or client, of its dialect.


def _load(name: str) -> Codec:
    codec: Codec = import_module(f"rsocket_trio.rsocket.layouts.{name}").CODEC
    return codec


# The clauses are named in the order of the fields. RSOCKET_1_0 is the default; others are described by how they differ.
RSOCKET_1_0: Final = Dialect(
    name="rsocket/1.0",
    major=1,
    minor=0,  # RS10-GEN-05
    layout=partial(_load, "v1_0"),
    framing=Framing24,  # RS10-FRM-03
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
    layout=partial(_load, "v0_2"),
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
    layout=partial(_load, "v0_1"),
    framing=Framing32,  # RS01-HDR-03, RS01-HDR-04
    interactions=frozenset(Interaction),  # RS01-GEN-03
    client_first_id=2,  # RS01-SID-04
    server_first_id=1,
    id_reuse=True,  # RS01-SID-05
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
    layout=partial(_load, "v0_0"),
    interactions=frozenset(Interaction) - {Interaction.REQUEST_CHANNEL},  # RS00-TYP-01
    last_id=UINT63_MAX,
    request_continues=False,  # RS00-FRAG-02
    request_fragments=False,
    channel_items_are_requests=False,
    strict=False,  # RS00-SETUP-03
    has_connection_error=False,  # RS00-SERR-03
    announces_drain=False,  # RS00-ERR-01
    versions=None,  # RS00-HDR-12
    lengths_are_learnt=False,  # RS00-HDR-02
    ids_have_parity=False,  # RS00-SID-04
    parity_is_learnt=False,
    implicit_lease=True,  # RS00-CON-06
    refusals=range(2**32),  # RS00-SERR-02
    errors_have_scopes=True,  # RS00-ERR-01, RS00-SERR-01
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
    layout=partial(_load, "v2_0_draft"),
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
        from rsocket_trio.rsocket.layouts.v0_1 import flagging_counts

        return flagging_counts(dialect.codec)

    return attrs.evolve(dialect, layout=flagging_codec)
