"""Cuts outbound payloads into fragments, and hands large bodies to the write without copying them."""

from __future__ import annotations

from collections.abc import Iterator

from rsocket_trio.mux.framing import EncodedFrame
from rsocket_trio.mux.reassembly import pieces
from rsocket_trio.mux.stream_state import Interaction
from rsocket_trio.payload import Payload
from rsocket_trio.rsocket.dialect import Dialect
from rsocket_trio.rsocket.frames import PayloadFrame, RequestFrame
from rsocket_trio.rsocket.layouts.v2_0_draft import mime_fields

WHOLE_BODY = 32768
"""Bytes from which a body is not copied into its frame, but handed to the write as it is."""
UNCUT = 2**24 - 1 + 16
"""Bytes of a frame for peers that join no fragments: a payload below 2^24 - 1, and what may stand before it in 0.1."""
EMPTY = Payload()
LONGEST_MIMES = 2 * 128
"""Bytes that the MIME types of one payload take at most."""


def checked_fragment_size(size: int, limit: int) -> int:
    """Return a valid outbound fragment size. Raise ``ValueError`` naming the bounds."""
    if not 64 <= size <= limit:
        raise ValueError(f"fragment_size of {size} bytes: must be between 64 and {limit}")
    return size


def lone_size(dialect: Dialect, fragment_size: int) -> int:
    """Return the size in bytes up to which a frame is sent whole, whatever MIME types its payload has."""
    return fragment_size - (LONGEST_MIMES if dialect.mime_fields else 0)


def head(dialect: Dialect, frame: RequestFrame | PayloadFrame, payload: Payload, metadata: bytes | None) -> bytes:
    """Encode a frame without its data, which always stands last."""
    mimes = frame.payload
    bare = Payload(
        b"",
        metadata,
        metadata_type=payload.metadata_type,
        data_mime=mimes.data_mime,
        metadata_mime=mimes.metadata_mime,
    )
    encode = dialect.codec.encode
    if isinstance(frame, PayloadFrame):
        return encode(PayloadFrame(frame.stream_id, bare, frame.next, frame.complete, frame.follows))
    return encode(
        RequestFrame(
            *(frame.stream_id, frame.interaction, bare, frame.initial_n, frame.follows, frame.complete),
            extensions=frame.extensions,
        )
    )


def fragments(
    dialect: Dialect, fragment_size: int, frame: RequestFrame | PayloadFrame, payload: Payload, fixed: int
) -> Iterator[EncodedFrame]:
    """Generate the frames of one payload as they are sent; ``fixed`` is the size of the first frame's fields in bytes.

    A request goes on as PAYLOAD (RS10-FRAG-04) or as itself (RS01-FRAG-02: a channel without its number). NEXT
    stands on every PAYLOAD, COMPLETE on the last frame only (RS10-FRAG-06, RS10-CH-05).
    """
    room = later_room = fragment_size - dialect.codec.header_size
    later_n = None
    repeats = dialect.request_repeats
    if repeats and isinstance(frame, RequestFrame) and frame.interaction is not Interaction.REQUEST_CHANNEL:
        later_n, later_room = frame.initial_n, room - fixed
    initial_n = frame.initial_n if isinstance(frame, RequestFrame) else None
    first = True
    extensions = frame.extensions if isinstance(frame, RequestFrame) else ()
    opening = EMPTY
    left = memoryview(payload.data)
    metadata_header = dialect.metadata_header
    first_room = room - fixed
    if dialect.mime_fields:
        # RSX-MIME-05: the first frame says them, and may become larger than others for that.
        opening = Payload(data_mime=payload.data_mime, metadata_mime=payload.metadata_mime)
        first_room = max(first_room - len(mime_fields("", payload)[1]), metadata_header)
    for piece in pieces(payload, first_room, later_room, metadata_header):
        complete = frame.complete and not piece.follows
        part: RequestFrame | PayloadFrame
        is_request = isinstance(frame, RequestFrame) and (first or repeats)
        if isinstance(frame, RequestFrame) and is_request:
            flags = piece.follows, complete
            part = RequestFrame(frame.stream_id, frame.interaction, opening, initial_n, *flags, extensions)
        else:
            part = PayloadFrame(frame.stream_id, opening, True, complete, piece.follows)
        before = head(dialect, part, payload, None if piece.metadata is None else bytes(piece.metadata))
        yield before, piece.data
        left = left[len(piece.data) :]
        if piece.metadata is None and piece.follows and not first and not is_request:
            break
        first, initial_n, opening, extensions = False, later_n, EMPTY, ()
    else:
        return
    # Nothing but data is left: all those up to the last begin alike, and are many.
    while len(left) > later_room:
        yield before, left[:later_room]
        left = left[later_room:]
    last = PayloadFrame(frame.stream_id, EMPTY, True, frame.complete, False)
    yield head(dialect, last, payload, None), left
