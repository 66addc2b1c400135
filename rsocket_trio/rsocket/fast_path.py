"""The short way of frames with nothing but data: the bytes that a layout writes them with, and how they are taken."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import attrs

from rsocket_trio.errors import LocalProtocolError, RemoteProtocolError
from rsocket_trio.mux.events import ItemReceived, ItemsReceived, RequestReceived
from rsocket_trio.mux.stream_state import RECEIVING, Interaction
from rsocket_trio.payload import Payload
from rsocket_trio.rsocket.codec import Codec
from rsocket_trio.rsocket.frames import PayloadFrame, RequestFrame
from rsocket_trio.rsocket.stream_table import RESPONDERS_HALVES, Stream

if TYPE_CHECKING:
    from rsocket_trio.rsocket.stream_receiver import StreamReceiver

LARGE = 4096
"""Bytes of a frame from which its data is not copied before it is joined."""
ITEM, LAST = PayloadFrame(1, Payload(b"1"), True, False, False), PayloadFrame(1, Payload(b"1"), True, True, False)
PART = PayloadFrame(1, Payload(b"1"), True, False, True)
UNCOUNTED = (Interaction.REQUEST_RESPONSE, Interaction.FIRE_AND_FORGET)


@attrs.frozen
class BytePatterns:
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


@functools.cache
def patterns_of(codec: Codec) -> BytePatterns | None:
    """Return the constants as the codec's own encoders write them, ``None`` if it writes no items."""
    header = codec.layout
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
    return BytePatterns(
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


def take_plain(receiver: StreamReceiver, patterns: BytePatterns, frames: Sequence[bytes], index: int) -> int:
    """Take a request or fragment with nothing but data, or consecutive such items of one stream.

    Return the number of frames taken from ``index`` on. It is 0 if the first one is in any way unusual or faulty:
    then it has to be decoded like every other frame.
    """
    data = frames[index]
    size = patterns.size
    kind = data[patterns.kind]
    stream_id = int.from_bytes(data[patterns.stream_id], "big")
    if kind != patterns.item and kind != patterns.last:
        if kind == patterns.part:
            return _take_parts(receiver, frames, index, size, stream_id)
        interaction = patterns.requests.get(kind)
        if interaction is None or stream_id > patterns.last_id or len(data) < size:
            return 0
        _take_request(receiver, stream_id, interaction, Payload(data[size:]))
        return 1
    table = receiver.table
    stream = table.mine.get(stream_id) or table.theirs.get(stream_id)
    if (
        stream is None
        or len(data) <= size  # cut off; or empty, which where it completes is no item in some dialects
        or stream.granted <= 0
        or not stream.open & RECEIVING
        or stream.request is not None
        or stream.assembly is not None
        or (receiver.dialect.request_repeats and not stream.requester)
    ):
        return 0
    if kind == patterns.last or stream.interaction is Interaction.REQUEST_RESPONSE:
        stream.granted -= 1
        receiver.events.append(ItemReceived(stream, Payload(data[size:]), True))
        receiver.close_receiving(stream)
        return 1
    head = data[:size]
    payloads = [Payload(data[size:])]
    end = min(len(frames), index + stream.granted)
    index += 1
    while index < end and (data := frames[index]).startswith(head):
        payloads.append(Payload(data[size:]))
        index += 1
    taken = len(payloads)
    stream.granted -= taken
    if taken == 1:
        receiver.events.append(ItemReceived(stream, payloads[0], False))
    else:
        receiver.events.append(ItemsReceived(stream, payloads))
    return taken


def _take_request(receiver: StreamReceiver, stream_id: int, interaction: Interaction, payload: Payload) -> None:
    table = receiver.table
    if (
        stream_id in table.theirs
        or table.late
        or receiver.draining
        or receiver.leases is not None
        or interaction not in receiver.dialect.interactions
        or len(table.theirs) + receiver.detached >= receiver.limits.streams
        or table.learns
        or not table.is_peers(stream_id)
    ):
        # The request may be refused, or its parity is to be learnt.
        receiver.on_request(RequestFrame(stream_id, interaction, payload))
        return
    stream = Stream(stream_id, interaction, RESPONDERS_HALVES[interaction], requester=False)
    if interaction is Interaction.REQUEST_RESPONSE:
        stream.room = 1
        table.theirs[stream_id] = stream
    receiver.events.append(RequestReceived(stream, payload, True))


def _take_parts(receiver: StreamReceiver, frames: Sequence[bytes], index: int, size: int, stream_id: int) -> int:
    """Take a fragment that is neither the first nor the last, and large ones like it that follow.

    Return the number taken, 0 if the first is unusual. ``size`` is the size of the header in bytes.
    """
    table, limits = receiver.table, receiver.limits
    data = frames[index]
    stream = table.mine.get(stream_id) or table.theirs.get(stream_id)
    if (
        stream is None
        or stream.assembly is None
        or len(data) <= size
        or not (stream.request is not None or stream.open & RECEIVING)
        or (receiver.dialect.request_repeats and not stream.requester)
    ):
        return 0
    assembly = stream.assembly
    if len(data) >= LARGE:
        head = data[:size]
        room = min(limits.payload_size - assembly.size, limits.reassembly_size - table.reassembling)
        parts = []
        while len(data) >= LARGE and data.startswith(head) and (room := room - len(data) + size) >= 0:
            parts.append(memoryview(data)[size:])
            index += 1
            if index == len(frames):
                break
            data = frames[index]
        if parts:
            table.reassembling += assembly.add_large(parts)
            return len(parts)
    # A view keeps the whole frame and is an object more: for small ones that is many times what they hold.
    part = memoryview(data)[size:] if len(data) >= LARGE else data[size:]
    table.reassembling += len(part)
    try:
        assembly.add_data(part, limits.payload_size, limits.tiny_fragments)
        receiver.check_reassembly()
    except RemoteProtocolError as error:
        receiver.offence(stream, error)
    return 1
