"""Peers by name: the terms that a client of ours needs with a server of each, a row a peer.

A server of ours needs none of this for old peers: it recognises them as clients by itself.
"""

from __future__ import annotations

from typing import Final

import attrs

from rsocket_trio.limits import MAX_FRAME_BYTES
from rsocket_trio.rsocket.dialect import REACTIVESOCKET_0_1, REACTIVESOCKET_0_2, RSOCKET_1_0
from rsocket_trio.rsocket.stream_sender import UNCUT
from rsocket_trio.terms import Keepalive


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
        Peer(
            name="go-2016",
            what="reactivesocket-go, 2016",
            quirks=("version_0_0", "client_ids_odd"),
        ),
        Peer(
            name="python-2017",
            what="rsocket 0.1.1 and 0.2.0 of PyPI, 2017",
            # Even ids, as the document has them, and it takes any version: nothing but fragments is foreign to it.
        ),
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
