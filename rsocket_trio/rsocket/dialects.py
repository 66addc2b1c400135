"""Which dialects there are, how they differ, and which of them the first bytes of a connection speak."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from typing import Final

import attrs

from rsocket_trio.errors import SETUP_ERRORS, SetupError
from rsocket_trio.mux.interaction import Interaction
from rsocket_trio.rsocket import layout_0_2, layout_1_0
from rsocket_trio.rsocket.codec import UINT31_MAX, Codec


@attrs.frozen(eq=False, kw_only=True)
class Dialect:
    """What a session needs to know about a dialect: capabilities by what they mean, and nothing that acts."""

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
    """A PAYLOAD with neither NEXT nor COMPLETE is an item if it carries anything, instead of being skipped."""
    request_continues: bool
    """A request frame of the same type goes on with one that waits for fragments, instead of being skipped."""
    request_repeats: bool = False
    """Fragments of a request are frames of its own type, instead of PAYLOAD."""
    request_fragments: bool = True
    """A request may be fragmented; otherwise it travels whole or not at all."""
    channel_items_are_requests: bool = False
    """The requester of a channel sends its items as further REQUEST_CHANNEL frames."""
    strict: bool
    """SETUP can ask for strict interpretation of its payload."""
    lease_refusal: str
    """What the REJECTED says that answers a request beyond the lease."""
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
    implicit_lease: bool = False
    """With leases the SETUP itself allows the server's requests, until a LEASE of the client's restricts them."""
    pushes_on_streams: bool = False
    """METADATA_PUSH may concern one stream."""
    setup_codes: Mapping[int, int] | None = None
    """How the codes of set-up errors are written; ``None``: as they are."""
    metadata_header: int = 3
    """Bytes that a frame pays for carrying metadata at all."""
    request_n_field: int = 4
    """Bytes of a number of items."""

    def setup_error(self, code: int) -> type[SetupError] | None:
        """The refusal that a code on stream 0 stands for, or ``None``."""
        codes = self.setup_codes or {}
        return next((error for plain, error in SETUP_ERRORS.items() if codes.get(plain, plain) == code), None)


# The clauses are named in the order of the fields. RSOCKET_1_0 is the default; others are described by how they differ.
RSOCKET_1_0: Final = Dialect(
    name="rsocket/1.0",
    major=1,
    minor=0,  # RS10-GEN-05
    codec=layout_1_0.CODEC,
    framing="u24",  # RS10-FRM-03
    interactions=frozenset(Interaction) - {Interaction.REQUEST_SUBSCRIPTION},
    client_first_id=1,  # RS10-SID-03
    server_first_id=2,  # RS10-SID-04
    last_id=UINT31_MAX,
    id_reuse=True,  # RS10-SID-07
    halves=True,  # RS10-SEQ-06, RS10-SEQ-10
    bad_metadata_ignored=False,  # RS10-MD-02
    bare_payload_is_item=False,  # RS10-PAY-03
    request_continues=False,  # RS10-FRAG-04, RS10-UNX-09
    strict=False,  # RS10-SETUP-03
    lease_refusal="no lease for this request",  # RS10-LS-02
)

REACTIVESOCKET_0_2: Final = attrs.evolve(
    RSOCKET_1_0,
    name="reactivesocket/0.2",
    major=0,
    minor=2,  # RS02-GEN-01
    codec=layout_0_2.CODEC,
    id_reuse=False,  # RS02-SID-05
    halves=False,  # RS02-SEQ-04
    bad_metadata_ignored=True,  # RS02-MD-02
    bare_payload_is_item=True,  # RS02-PAY-03
    request_continues=True,  # RS02-FRAG-03
    strict=True,  # RS02-SETUP-03
    lease_refusal="LEASE_ERROR: no lease for this request",  # RS02-ERR-09
)

DIALECTS: Final[dict[str, Dialect]] = {dialect.name: dialect for dialect in (RSOCKET_1_0, REACTIVESOCKET_0_2)}
ALL: Final[tuple[str, ...]] = tuple(DIALECTS)


def dialect_named(name: str) -> Dialect:
    """The dialect of that name. Raises ``ValueError`` for a name that none has."""
    try:
        return DIALECTS[name]
    except KeyError:
        raise ValueError(f"dialect {name!r}: the known ones are {', '.join(ALL)}") from None


class Undecided(enum.Enum):
    """The answer of ``detect`` while it needs more bytes."""

    UNDECIDED = enum.auto()


UNDECIDED: Final = Undecided.UNDECIDED


class _Standing(enum.Enum):
    """How a signature stands against the bytes so far."""

    OPEN = enum.auto()
    FITS = enum.auto()
    REFUTED = enum.auto()


@attrs.frozen
class _Signature:
    """What the first frame of a dialect looks like on a byte stream, a token for each byte.

    ``--`` is any byte, ``04`` that byte, ``04/FC`` one that is 04 under the mask FC.
    """

    dialect: Dialect
    drawn: str

    @property
    def size(self) -> int:
        """Bytes that the frame must have, its length prefix included."""
        return len(self.drawn.split())

    @property
    def clues(self) -> Iterator[tuple[int, int, int]]:
        """Index, mask and value of each byte that matters."""
        for index, token in enumerate(self.drawn.split()):
            if token != "--":
                wanted, _, mask = token.partition("/")
                yield index, int(mask or "FF", 16), int(wanted, 16)

    def compare(self, data: bytes, *, message: bool, ended: bool) -> _Standing:
        if message:
            # DET-09: a message is its frame; with the prefix that it would have elsewhere the same bytes decide.
            data = min(len(data), 0xFFFFFF).to_bytes(3, "big") + data
        if len(data) >= 3 and 3 + int.from_bytes(data[:3], "big") < self.size:
            return _Standing.REFUTED  # The frame ends before the last byte that decides; what follows is another one.
        missing = False
        for index, mask, wanted in self.clues:
            if index >= len(data):
                missing = True
            elif data[index] & mask != wanted:
                return _Standing.REFUTED
        if not missing:
            return _Standing.FITS
        return _Standing.REFUTED if ended else _Standing.OPEN


# In the order in which they are tried. Type is the upper six bits of its byte.
_SIGNATURES: Final = (
    #                               length   stream id   type  fl  version
    _Signature(RSOCKET_1_0,        "-- -- -- 00 00 00 00 04/FC -- 00 01 00 00"),  # DET-02, SETUP
    _Signature(RSOCKET_1_0,        "-- -- -- 00 00 00 00 34/FC -- 00 01 00 00"),  # DET-02, RESUME
    _Signature(REACTIVESOCKET_0_2, "-- -- -- 00 00 00 00 04/FC -- 00 00 00 02"),  # DET-03, SETUP
    _Signature(REACTIVESOCKET_0_2, "-- -- -- 00 00 00 00 34/FC -- 00 00 00 02"),  # DET-03, RESUME
)  # fmt: skip

# DET-07: any other frame that 1.0 knows, but a RESUME, is told in 1.0's layout that it should have been a SETUP.
_ANSWERS: Final = tuple(
    _Signature(RSOCKET_1_0, f"-- -- -- 00/80 -- -- -- {row.number << 2:02X}/FC --")
    for row in layout_1_0.CODEC.rows
    if row.name != "RESUME"
)


def detect(data: bytes, *, message: bool, ended: bool) -> Dialect | Undecided | None:
    """Which dialect a client speaks whose first bytes these are; ``None`` when no dialect begins like this.

    ``message`` says that ``data`` is the first message of a transport that keeps borders, ``ended`` that no more bytes
    will come. At most 16 bytes are needed. ``UNDECIDED`` as long as more bytes could change the answer, that of
    ``answer_for`` included.
    """
    found = _first_that_fits(_SIGNATURES, data, message=message, ended=ended)
    if found is None and _first_that_fits(_ANSWERS, data, message=message, ended=ended) is UNDECIDED:
        return UNDECIDED
    return found


def answer_for(data: bytes, *, message: bool) -> Dialect | None:
    """In which dialect INVALID_SETUP answers bytes that ``detect`` did not recognise; ``None``: close silently."""
    found = _first_that_fits(_ANSWERS, data, message=message, ended=True)
    return found if isinstance(found, Dialect) else None


def _first_that_fits(
    signatures: tuple[_Signature, ...], data: bytes, *, message: bool, ended: bool
) -> Dialect | Undecided | None:
    if not data and not ended:
        return UNDECIDED
    for signature in signatures:
        standing = signature.compare(data, message=message, ended=ended)
        if standing is _Standing.FITS:
            return signature.dialect
        if standing is _Standing.OPEN:
            return UNDECIDED
    return None
