"""``Dialect``: an immutable record of the capabilities of one protocol version."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Final, Protocol

import attrs

from rsocket_trio.errors import SETUP_ERRORS, ApplicationError, RejectedSetup, RemoteProtocolError, SetupError
from rsocket_trio.limits import LARGEST_FRAME
from rsocket_trio.rsocket.codec import Codec

if TYPE_CHECKING:
    from rsocket_trio.mux.stream_state import Interaction
    from rsocket_trio.payload import Payload
    from rsocket_trio.rsocket.frames import ExtensionEntry, SetupFrame
    from rsocket_trio.terms import Keepalive

NO_COUNT = bytes(4)
"""A number of items where its flag says that there is none."""

LARGEST_FRAMES: Final = {"u24": LARGEST_FRAME, "u32": 2**31 - 1 - 4}
"""Bytes of the largest frame, by the framing's length prefix; 32 bits count themselves, and the first is reserved."""


class ExtensionRules(Protocol):
    """The rules of extension entries, for a dialect that has them. They are loaded when a session first needs them."""

    def asked(
        self, keepalive: Keepalive, *, lease: bool, token: bytes | None = None, position: int | None = None
    ) -> tuple[ExtensionEntry, ...]:
        """Return the entries of a client's own SETUP; with ``position`` it resumes."""
        ...

    def stated(self, frame: SetupFrame) -> SetupFrame:
        """Return the SETUP with its terms also in the fields that other dialects have for them."""
        ...

    def unreadable(self, error: RemoteProtocolError) -> SetupError:
        """Return the refusal of a SETUP that was not understood."""
        ...

    def refusal(self, frame: SetupFrame, *, grants_leases: bool, resumes: bool = False) -> SetupError | None:
        """Return a server's refusal of this SETUP, ``None`` if it can be accepted."""
        ...

    def grants(self, frame: SetupFrame, *, grants_leases: bool, resumes: bool = False) -> tuple[ExtensionEntry, ...]:
        """Return the entries that a server grants by itself."""
        ...

    def check_grants(self, asked_for: Iterable[ExtensionEntry], granted: tuple[ExtensionEntry, ...]) -> None:
        """Check the grants of SETUP_OK. Raise ``RemoteProtocolError`` or ``UnsupportedSetup``."""
        ...

    def asked_to_resume(self, frame: SetupFrame) -> tuple[bytes, int] | None:
        """Return the token and the position of a SETUP that resumes a session, ``None`` for any other."""
        ...

    def resume_grant(self, position: int | None) -> ExtensionEntry:
        """Return a server's grant of resumption, with its position for a client that resumes."""
        ...

    def resumed_from(self, granted: Iterable[ExtensionEntry]) -> int | None:
        """Return the position of a server that resumes the session, ``None`` if it does not."""
        ...

    def with_mark(self, entries: tuple[ExtensionEntry, ...]) -> tuple[ExtensionEntry, ...]:
        """Return a request's entries with its stream marked as resumable, unless they carry a mark."""
        ...

    def is_resumable(self, entries: Iterable[ExtensionEntry]) -> bool:
        """Return whether a request with these entries marks its stream as resumable."""
        ...

    def block_size(self, entries: tuple[ExtensionEntry, ...]) -> int:
        """Return the bytes that a request's entries take."""
        ...

    def mime_size(self, payload: Payload) -> int:
        """Return the bytes that a payload's own MIME types take."""
        ...

    def cost_of(self, entries: tuple[ExtensionEntry, ...]) -> int:
        """Return the cost in permits of a request with these entries."""
        ...

    def misdirected(self, entries: tuple[ExtensionEntry, ...]) -> bool:
        """Return whether a broker's address lacks exactly one of unicast, multicast and shard."""
        ...


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
    layout: Callable[[], Codec]
    """Load the codec, when it is first needed."""
    framing: str
    """The length prefix on byte streams: ``"u24"``, which does not count itself, or ``"u32"``, which does."""
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
    load_extensions: Callable[[], ExtensionRules] | None = None
    """Loads the rules of extension entries, for a dialect with ``entries``."""
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

    @cached_property
    def codec(self) -> Codec:
        """The codec of the frames."""
        return self.layout()

    @property
    def largest_frame(self) -> int:
        """Bytes of the largest frame, its length prefix not counted; known before the codec is loaded."""
        return LARGEST_FRAMES[self.framing]

    @cached_property
    def extensions(self) -> ExtensionRules:
        """The rules of extension entries, which only a dialect with ``entries`` has."""
        assert self.load_extensions is not None
        return self.load_extensions()

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
