"""``Dialect``: an immutable record of the capabilities of one protocol version."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import attrs

from rsocket_trio.errors import SETUP_ERRORS, ApplicationError, RejectedSetup, SetupError
from rsocket_trio.mux.stream_state import Interaction
from rsocket_trio.payload import Payload
from rsocket_trio.rsocket.codec import Codec

NO_COUNT = bytes(4)
"""A number of items where its flag says that there is none."""


@attrs.frozen(eq=False, kw_only=True)
class Dialect:
    """The capabilities of a dialect that a session depends on, named by their meaning. It performs no action."""

    first_message: ClassVar[str] = "SETUP"
    message_budget: ClassVar[int | None] = None
    routes: ClassVar[bool] = True
    name: str
    major: int
    minor: int
    """The version that SETUP and RESUME carry."""
    codec: Codec
    framing: str
    """The length prefix on byte streams: ``"u24"``, which does not count itself."""
    interactions: frozenset[Interaction]
    client_first_id: int
    server_first_id: int
    last_id: int
    id_reuse: bool
    """After the last id begin again and skip ids in use, instead of refusing new streams."""
    halves: bool
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
    """ERROR with CONNECTION_CLOSE can say that this side takes no more requests."""
    versions: frozenset[tuple[int, int]] | None = None
    """The versions that a server takes in a SETUP; ``None``: its own only."""
    has_lifetime: bool = True
    """SETUP agrees on keepalives and a lifetime above 0; otherwise it may say nothing of them, or 0 for none."""
    ids_have_parity: bool = True
    """Client and server use odd and even ids, so that an id tells who opened the stream."""
    metadata_types: bool = False
    """Metadata has a type byte."""
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
    mime_fields: bool = False
    """MIME types are texts or numbers of well-known ones, and a payload may name its own."""
    free_mimes: bool = False
    """A MIME type may be any text that the two sides agree on; otherwise it has a slash."""
    resumes: bool = False
    """A session can go on over another transport, by RESUME and positions in bytes."""
    resume_versions: frozenset[tuple[int, int]] = frozenset()
    """Versions that a RESUME may say beside the dialect's own."""
    keeps_credit: bool = True
    """The peer sends no more than it was granted; otherwise what is beyond waits for its reader all the same."""
    initial_request_n: int = 256
    """The credit that a request of this side begins with where its caller names none."""
    metadata_header: int = 3
    """Bytes that a frame pays for carrying metadata at all."""
    request_n_field: int = 4
    """Bytes of a number of items."""

    def refusal(self, code: int, data: bytes) -> SetupError | None:
        """Return the refusal in an ERROR on stream 0, or ``None``. A code that no table has keeps its number."""
        codes = self.setup_codes or {}
        for plain, error in SETUP_ERRORS.items():
            if codes.get(plain, plain) == code:
                return error.received(plain, data)
        return RejectedSetup.received(code, data) if code in self.refusals else None

    def only_completes(self, payload: Payload, initial_n: int | None = None) -> bool:
        """Return whether the last REQUEST_CHANNEL, with this payload and number, has no item (RS01-RSP-03)."""
        if payload.metadata is not None:
            return False
        return not payload.data or (self.zero_completes and initial_n is None and payload.data == NO_COUNT)

    def misplaces(self, stream_id: int, code: int) -> bool:
        """Return whether an ERROR's code does not fit its stream id, so that it is ignored."""
        return self.errors_have_scopes and (stream_id == 0) == (code == ApplicationError.default_code)
