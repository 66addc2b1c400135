"""The constant headers with which a layout writes items and requests that have nothing but data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import attrs

from rsocket_trio.errors import LocalProtocolError
from rsocket_trio.mux.stream_state import Interaction
from rsocket_trio.payload import Payload
from rsocket_trio.rsocket.frames import PayloadFrame, RequestFrame

if TYPE_CHECKING:
    from rsocket_trio.rsocket.codec import Codec, HeaderLayout

ITEM, LAST = PayloadFrame(1, Payload(b"1"), True, False, False), PayloadFrame(1, Payload(b"1"), True, True, False)
PART = PayloadFrame(1, Payload(b"1"), True, False, True)
UNCOUNTED = (Interaction.REQUEST_RESPONSE, Interaction.FIRE_AND_FORGET)


@attrs.frozen
class Plain:
    """The layout of frames with a stream id, constant type and flags, and data: no metadata, no numbers.

    ``item`` are the bytes of type and flags of an item, ``last`` of one that completes, ``part`` of a fragment that
    others follow (``None`` where there are none), ``requests`` those of requests that say no number. ``kind`` and
    ``stream_id`` are where both stand, ``size`` is the bytes of the header, ``width`` those of the stream id, and
    ``last_id`` how far that may go.
    """

    size: int
    kind: slice
    stream_id: slice
    width: int
    id_first: bool
    last_id: int
    item: bytes
    last: bytes
    part: bytes | None
    requests: Mapping[bytes, Interaction]
    asking: Mapping[Interaction, bytes]
    """The same the other way round."""

    def head(self, stream_id: int, kind: bytes) -> bytes:
        """Return the header before the data."""
        number = stream_id.to_bytes(self.width, "big")
        return number + kind if self.id_first else kind + number


def plain_frames(codec: Codec, header: HeaderLayout) -> Plain | None:
    """Return the constants as the codec's own encoders write them, ``None`` if it writes no items."""
    place = header.stream_id
    kind = slice(0, place.start) if place.start else slice(place.stop, header.size)
    asking: dict[Interaction, bytes] = {}
    try:
        item, last = (codec.encode_parts(frame)[0][kind] for frame in (ITEM, LAST))
        for interaction in UNCOUNTED:
            asking[interaction] = codec.encode_parts(RequestFrame(1, interaction, ITEM.payload))[0][kind]
    except LocalProtocolError:
        return None
    try:
        part = codec.encode_parts(PART)[0][kind]
    except LocalProtocolError:
        part = None
    return Plain(
        size=header.size,
        kind=kind,
        stream_id=place,
        width=place.stop - place.start,
        id_first=not place.start,
        last_id=header.last_id,
        item=item,
        last=last,
        part=part,
        requests={written: interaction for interaction, written in asking.items()},
        asking=asking,
    )
