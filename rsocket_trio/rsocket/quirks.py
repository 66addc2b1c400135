"""Named deviations of peers from a dialect's document, as changes of the dialect, and peers by name.

No quirk is on by default.

A deviation that is merely accepted needs no name and is always on: a client of 0.1 that announces 0.0 or 0.2, answers
to keepalives with other data or none, a RESPONSE that forgets to complete a request/response, unknown error codes, a
RESUME of 1.0 that says 0.1 (rsocket-js). So are a channel's ends as Java says them in 0.1, the parity of stream ids
that a server of 0.1 or 0.2 learns, and in 0.2 an item that says only that it is the last.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import attrs

from rsocket_trio.limits import MAX_FRAME_BYTES
from rsocket_trio.rsocket.codec import Codec
from rsocket_trio.rsocket.dialect import REACTIVESOCKET_0_1, REACTIVESOCKET_0_2, RSOCKET_1_0, Dialect
from rsocket_trio.rsocket.stream_sender import UNCUT
from rsocket_trio.terms import Keepalive


@attrs.frozen
class Quirk:
    """A deviation that some peers of a dialect need."""

    name: str
    dialect: str
    meaning: str
    peers: str
    changes: Mapping[str, Any] = attrs.field(factory=dict)
    """The capabilities that it changes, with their values."""


def _codec_with(quirks: frozenset[str]) -> Codec:
    from rsocket_trio.rsocket.layouts.v0_1 import codec

    return codec(quirks)


def _of_0_1(name: str, meaning: str, peers: str, **changes: Any) -> Quirk:
    return Quirk(name, REACTIVESOCKET_0_1.name, meaning, peers, changes)


OF_LAYOUT: Final = frozenset({"version_0_0", "low_setup_flags", "channel_slot"})
"""Quirks that replace rows of the codec: two of them may change one row."""

# fmt: off
QUIRKS: Final = (
    _of_0_1("version_0_0", "a client announces version 0.0, and cuts no payload below 16 MiB - 1 by default",
            "Java 0.2.2 and Go take no other", major=0, minor=0),
    _of_0_1("low_setup_flags", "the lease and strict flags of SETUP are read and written one byte too low as well",
            "Java 0.2.2 and 0.5.2 write and read 0x0020 and 0x0010"),
    _of_0_1("channel_slot", "REQUEST_CHANNEL always has its number, whatever N says",
            # Where the number is always there, four zero bytes behind it are an item. Java sets the flag with it, so
            # that peers which follow the document read the items as well.
            "Java 0.5.2 and C++ always write it", zero_completes=False, channel_item_n=0),
    _of_0_1("client_ids_odd", "a client uses odd stream ids, and its server even ones; on a server it changes nothing",
            "JavaScript 3.3.1, Go, Java 0.5.2, and C++ since February 2017", client_swaps_ids=True),
    _of_0_1("length_on_messages", "a client's messages keep the length of byte streams; on a server it changes nothing",
            "JavaScript and Java 0.2.2 over WebSocket", length_on_messages=True),
    _of_0_1("metadata_push_on_streams", "metadata pushed with any stream id concerns the connection",
            "Java 0.2.2 takes an id of its own for each", any_push_id=True),
    Quirk("ignores_credit", RSOCKET_1_0.name, "items beyond the credit wait for their reader; above "
          "`Limits.inbox_size` reading pauses", "rsocket-rust sends whatever REQUEST_N says", {"keeps_credit": False}),
    Quirk("whole_requests", RSOCKET_1_0.name, "a request is sent in one frame, or refused here if it is larger",
          "rsocket-kotlin ends the connection at a request in fragments", {"request_fragments": False}),
)
# fmt: on


def known_quirks(dialect: Dialect) -> dict[str, Quirk]:
    """Return the quirks of a dialect, by name."""
    return {quirk.name: quirk for quirk in QUIRKS if quirk.dialect == dialect.name}


def with_quirks(dialect: Dialect, names: Iterable[str]) -> Dialect:
    """Return the dialect with these quirks. Raise ``ValueError`` naming an unknown one."""
    return all_with_quirks([dialect], names)[0]


def all_with_quirks(dialects: Sequence[Dialect], names: Iterable[str]) -> list[Dialect]:
    """Return the dialects, each with the quirks that it knows. Raise ``ValueError`` for one that none of them knows."""
    if isinstance(names, str):
        raise TypeError(f"quirks are several names, not one text: {names!r}")
    chosen = frozenset(names)
    if not chosen:
        return list(dialects)
    known = {name for dialect in dialects for name in known_quirks(dialect)}
    for name in sorted(chosen - known):
        spoken = ", ".join(dialect.name for dialect in dialects)
        have = f"the known ones are {', '.join(sorted(known))}" if known else "there are none"
        raise ValueError(f"quirk {name!r} of {spoken}: {have}")
    return [_changed(dialect, chosen) for dialect in dialects]


def _changed(dialect: Dialect, names: frozenset[str]) -> Dialect:
    if replaced := names.intersection(OF_LAYOUT, known_quirks(dialect)):
        dialect = attrs.evolve(dialect, layout=partial(_codec_with, replaced))
    for name, quirk in known_quirks(dialect).items():
        if name in names:
            dialect = attrs.evolve(dialect, **quirk.changes)
    return dialect


@attrs.frozen(kw_only=True)
class Peer:
    """An implementation as a server: the terms on which it understands a client. ``None`` leaves a default as it is."""

    name: str
    what: str
    """The implementation, its version and its time."""
    dialect: str = REACTIVESOCKET_0_1.name
    quirks: tuple[str, ...] = ()
    mime: str | None = None
    """The MIME type of data and of metadata."""
    keepalive: Keepalive | None = None
    fragment_size: int | None = UNCUT
    """Bytes of the largest frame to send."""
    initial_request_n: int | None = None
    """The credit that a request begins with."""


PEERS: Final = {
    peer.name: peer
    for peer in (
        Peer(
            name="java-0.2.2",
            what="reactivesocket-java 0.2.2, 2016",
            # It takes version 0.0 only, skips four bytes in every REQUEST_CHANNEL, reads the lease flag one byte too
            # low, pushes metadata on an id of its own, and keeps the length inside WebSocket messages.
            quirks=(
                *("version_0_0", "low_setup_flags", "channel_slot", "metadata_push_on_streams", "length_on_messages"),
            ),
        ),
        Peer(
            name="java-0.5.2",
            what="reactivesocket-java 0.5.2, 2017",
            quirks=("low_setup_flags", "channel_slot", "client_ids_odd"),
            initial_request_n=2,
        ),
        Peer(
            name="js-3",
            what="reactivesocket-js 3.3.1, 2016",
            # The MIME type is the name of a character set to it: it crashes on any other.
            quirks=("client_ids_odd", "length_on_messages"),
            mime="utf-8",
        ),
        Peer(
            name="js-1",
            what="reactivesocket-js 1.2.0, 2016",
            quirks=("length_on_messages",),
            mime="utf-8",
            keepalive=Keepalive(500, 900),
        ),
        Peer(name="go-2016", what="reactivesocket-go, 2016", quirks=("version_0_0", "client_ids_odd")),
        # Even ids, as the document has them, and it takes any version: nothing but fragments is foreign to it.
        Peer(name="python-2017", what="rsocket 0.1.1 and 0.2.0 of PyPI, 2017"),
        Peer(
            name="rsocket-py/fc7afed",
            what="rsocket-py at commit fc7afed, before it spoke 1.0",
            dialect=REACTIVESOCKET_0_2.name,
            # It takes the first fragment for the whole payload, and reports no error.
            fragment_size=MAX_FRAME_BYTES,
        ),
        Peer(
            name="rsocket-kotlin/0.20",
            what="rsocket-kotlin 0.20.0, 2025",
            dialect=RSOCKET_1_0.name,
            # It ends the connection at the second fragment of a request. It joins answers and items.
            quirks=("whole_requests",),
            fragment_size=MAX_FRAME_BYTES,
        ),
    )
}
"""The terms for each of these peers, by name."""


def peer_named(name: str) -> Peer:
    """Return the peer of that name. Raise ``ValueError`` that lists the known ones."""
    try:
        return PEERS[name]
    except (KeyError, TypeError):
        raise ValueError(f"peer {name!r}: the known ones are {', '.join(PEERS)}") from None
