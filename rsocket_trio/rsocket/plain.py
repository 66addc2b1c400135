"""How does a layout write an item that has nothing but data? Most items have not, and these need no frame values."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from rsocket_trio.errors import LocalProtocolError
from rsocket_trio.payload import Payload
from rsocket_trio.rsocket.frames import PayloadFrame

if TYPE_CHECKING:
    from rsocket_trio.rsocket.codec import Codec


@attrs.frozen
class PlainItems:
    """Items without metadata, in one frame each: a stream id, type and flags that are always the same, and the data.

    ``item`` are the bytes of type and flags of such an item, ``last`` of one that completes; ``kind`` and
    ``stream_id`` are where both stand, ``size`` is the bytes of the header, ``width`` those of the stream id.
    """

    size: int
    kind: slice
    stream_id: slice
    item: bytes
    last: bytes
    width: int
    id_first: bool

    def head(self, stream_id: int, kind: bytes) -> bytes:
        """What stands before the data."""
        number = stream_id.to_bytes(self.width, "big")
        return number + kind if self.id_first else kind + number


def plain_items(codec: Codec, stream_id: slice) -> PlainItems | None:
    """How a codec's own encoder writes them; ``None`` where it writes none."""
    kind = slice(0, stream_id.start) if stream_id.start else slice(stream_id.stop, codec.header_size)
    try:
        item, last = (
            codec.encode_parts(PayloadFrame(1, Payload(b"1"), True, complete, False))[0] for complete in (False, True)
        )
    except LocalProtocolError:
        return None
    width = stream_id.stop - stream_id.start
    return PlainItems(codec.header_size, kind, stream_id, item[kind], last[kind], width, not stream_id.start)
