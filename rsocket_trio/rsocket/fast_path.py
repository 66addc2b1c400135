"""Byte patterns of plain frames, and the reader that takes those without decoding.

A plain frame has a stream id and a payload, nothing else. The stream receiver and the stream sender decide its meaning,
and whether it is allowed, by the same functions as for a decoded frame. All other frames are decoded.
"""

from __future__ import annotations

import enum
import functools
import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import attrs

from rsocket_trio.errors import LocalProtocolError
from rsocket_trio.mux.stream_state import RECEIVING, REQUEST_RESPONSE, Interaction
from rsocket_trio.payload import Payload
from rsocket_trio.rsocket.codec import Codec
from rsocket_trio.rsocket.frames import Frame, PayloadFrame, RequestFrame

if TYPE_CHECKING:
    from rsocket_trio.rsocket.stream_receiver import StreamReceiver

SAMPLE, SAMPLE_WITH_METADATA = Payload(b"1"), Payload(b"1", b"22")
METADATA_FIELD = b"\0\0\x0222"
"""The metadata of that sample as the fast path writes it: behind its length of 24 bits."""
LENGTH = 3
"""Bytes of that length."""
FORMATS = {2: "H", 4: "I", 8: "Q"}
"""The formats of numbers by their bytes, for ``struct``."""
UNCOUNTED = (Interaction.REQUEST_RESPONSE, Interaction.FIRE_AND_FORGET)
LARGE = 4096
"""Bytes of a frame from which its data is not copied before it is joined."""

new = object.__new__


class Form(enum.Enum):
    """The kind of a frame of the fast path."""

    ITEM = enum.auto()
    LAST = enum.auto()
    """An item that completes."""
    PART = enum.auto()
    """A fragment that others follow."""
    REQUEST = enum.auto()
    """A request that says no number."""


ITEM, LAST, PART = Form.ITEM, Form.LAST, Form.PART


@attrs.frozen
class Head:
    """The bytes of type and flags around the stream id, in the header of a frame to write.

    ``after_with_metadata`` are those of the same frame with metadata, ``None`` if the fast path writes no metadata.
    """

    before: bytes
    after: bytes
    after_with_metadata: bytes | None


class Kind(NamedTuple):
    """The meaning of the bytes of type and flags of a received frame. ``interaction`` is that of a request."""

    form: Form
    metadata: bool
    interaction: Interaction | None


@attrs.frozen
class BytePatterns:
    """The constant bytes of a layout's frames with a stream id and a payload, and the places of both in the header.

    ``size`` are the bytes of the header, ``width`` those of the stream id, and ``last_id`` is the largest of those.
    ``split`` reads a header as two numbers: stream id, type and flags, or the other way round if ``id_is_last``.
    ``kinds`` are the meanings of type and flags; ``item``, ``last`` and ``requests`` are written.
    """

    size: int
    split: Callable[[bytes], tuple[int, int]]
    id_is_last: bool
    width: int
    last_id: int
    kinds: Mapping[int, Kind]
    item: Head
    last: Head
    requests: Mapping[Interaction, Head]


@functools.cache
def patterns_of(codec: Codec) -> BytePatterns | None:
    """Return the patterns of a codec, as its own encoders write them; ``None`` if it writes no items."""
    header = codec.layout
    place = header.stream_id
    kind = slice(0, place.start) if place.start else slice(place.stop, header.size)
    kinds: dict[int, Kind] = {}

    def head(form: Form, frame: Callable[[Payload], Frame], interaction: Interaction | None = None) -> Head:
        """Return the head of these frames, and note the meaning of its bytes when they are received."""
        written = codec.encode_parts(frame(SAMPLE))[0][kind]
        kinds[int.from_bytes(written, "big")] = Kind(form, False, interaction)
        if place.start:
            return Head(written, b"", None)
        with_metadata = codec.encode_parts(frame(SAMPLE_WITH_METADATA))[0]
        if form is PART or with_metadata[header.size :] != METADATA_FIELD:
            return Head(b"", written, None)
        kinds[int.from_bytes(with_metadata[kind], "big")] = Kind(form, True, interaction)
        return Head(b"", written, with_metadata[kind])

    try:
        item = head(ITEM, lambda payload: PayloadFrame(1, payload, True, False, False))
        last = head(LAST, lambda payload: PayloadFrame(1, payload, True, True, False))
        requests = {kind: head(Form.REQUEST, partial(RequestFrame, 1, kind), kind) for kind in UNCOUNTED}
    except LocalProtocolError:
        return None
    with suppress(LocalProtocolError):  # a layout without fragments
        head(PART, lambda payload: PayloadFrame(1, payload, True, False, True))
    width = place.stop - place.start
    fields = [header.size - width, width] if place.start else [width, header.size - width]
    split = struct.Struct(">" + "".join(FORMATS[field] for field in fields)).unpack_from
    return BytePatterns(header.size, split, place.start > 0, width, header.last_id, kinds, item, last, requests)


def take_short(receiver: StreamReceiver, patterns: BytePatterns, frames: Sequence[bytes], index: int) -> int:
    """Take a request, an item or a fragment with nothing but a payload, or consecutive ones of one stream.

    Return the number of frames taken from ``index`` on. It is 0 if the first one is in any way unusual or faulty:
    then it has to be decoded like every other frame.
    """
    data = frames[index]
    size = patterns.size
    if len(data) < size:
        return 0
    stream_id, word = patterns.split(data)
    if patterns.id_is_last:
        stream_id, word = word, stream_id
    kind = patterns.kinds.get(word)
    if kind is None:
        return 0
    form, has_metadata, interaction = kind
    if form is PART:
        return _take_parts(receiver, frames, index, size, stream_id)
    begin = size
    if has_metadata:
        begin += LENGTH + int.from_bytes(data[size : size + LENGTH], "big")
        if begin > len(data) or len(data) < size + LENGTH:
            return 0
    if interaction is not None:
        if stream_id > patterns.last_id or stream_id in receiver.table.theirs or receiver.table.late:
            return 0
        # As ``Payload(data[begin:])``, without the call of a function for each request.
        payload = new(Payload)
        payload.data = data[begin:]
        payload.metadata = data[size + LENGTH : begin] if has_metadata else None
        payload.data_mime = payload.metadata_mime = None
        payload.metadata_type = 0
        receiver.take_request(stream_id, interaction, payload)
        return 1
    table = receiver.table
    stream = table.mine.get(stream_id) or table.theirs.get(stream_id)
    if (
        stream is None
        or len(data) == size  # empty, which where it completes is no item in some dialects
        or not stream.open & RECEIVING
        or stream.request is not None
        or stream.assembly is not None
        or (receiver.dialect.request_repeats and not stream.requester)
    ):
        return 0
    if has_metadata:
        receiver.take_item(stream, Payload(data[begin:], data[size + LENGTH : begin]), form is LAST)
        return 1
    payload = new(Payload)
    payload.data = data[size:]
    payload.metadata = payload.data_mime = payload.metadata_mime = None
    payload.metadata_type = 0
    if form is LAST or stream.granted <= 1 or stream.interaction is REQUEST_RESPONSE:
        receiver.take_item(stream, payload, form is LAST)
        return 1
    head = data[:size]
    payloads = [payload]
    for data in islice(frames, index + 1, index + stream.granted):
        if not data.startswith(head):
            break
        # As ``Payload(data[size:])``, without the call of a function for each item.
        payload = new(Payload)
        payload.data = data[size:]
        payload.metadata = payload.data_mime = payload.metadata_mime = None
        payload.metadata_type = 0
        payloads.append(payload)
    if len(payloads) == 1:
        receiver.take_item(stream, payloads[0], False)
        return 1
    receiver.take_items(stream, payloads)
    return len(payloads)


def _take_parts(receiver: StreamReceiver, frames: Sequence[bytes], index: int, size: int, stream_id: int) -> int:
    """Take a fragment that is neither the first nor the last, and large ones like it that follow.

    Return the number taken, 0 if the first is unusual. ``size`` is the size of the header in bytes.
    """
    table = receiver.table
    data = frames[index]
    stream = table.mine.get(stream_id) or table.theirs.get(stream_id)
    if (
        stream is None
        or stream.assembly is None
        or len(data) == size
        or not (stream.request is not None or stream.open & RECEIVING)
        or (receiver.dialect.request_repeats and not stream.requester)
    ):
        return 0
    if len(data) >= LARGE:
        head = data[:size]
        room = receiver.joining_room(stream)
        parts = []
        while len(data) >= LARGE and data.startswith(head) and (room := room - len(data) + size) >= 0:
            parts.append(memoryview(data)[size:])
            index += 1
            if index == len(frames):
                break
            data = frames[index]
        if parts:
            receiver.take_large_parts(stream, parts)
            return len(parts)
    # A view keeps the whole frame and is an object more: for small ones that is many times what they hold.
    receiver.take_part(stream, memoryview(data)[size:] if len(data) >= LARGE else data[size:])
    return 1
