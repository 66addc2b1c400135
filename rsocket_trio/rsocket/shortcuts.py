"""Fast paths that take requests, items and fragments with nothing but data, without frame values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rsocket_trio.errors import RemoteProtocolError
from rsocket_trio.mux.events import ItemReceived, ItemsReceived, RequestReceived
from rsocket_trio.mux.stream_state import RECEIVING, Interaction
from rsocket_trio.payload import Payload
from rsocket_trio.rsocket.frames import RequestFrame
from rsocket_trio.rsocket.streams import RESPONDERS_HALVES, Stream

if TYPE_CHECKING:
    from rsocket_trio.rsocket.inbound import Inbound
    from rsocket_trio.rsocket.plain import Plain

LARGE = 4096
"""Bytes of a frame from which its data is not copied before it is joined."""


def take_plain(inbound: Inbound, plain: Plain, frames: Sequence[bytes], index: int) -> int:
    """Take a request or fragment with nothing but data, or consecutive such items of one stream.

    Return the number of frames taken from ``index`` on. It is 0 if the first one is in any way unusual or faulty:
    then it has to be decoded like every other frame.
    """
    data = frames[index]
    size = plain.size
    kind = data[plain.kind]
    stream_id = int.from_bytes(data[plain.stream_id], "big")
    if kind != plain.item and kind != plain.last:
        if kind == plain.part:
            return _take_parts(inbound, frames, index, size, stream_id)
        interaction = plain.requests.get(kind)
        if interaction is None or stream_id > plain.last_id or len(data) < size:
            return 0
        _take_request(inbound, stream_id, interaction, Payload(data[size:]))
        return 1
    table = inbound.table
    stream = table.mine.get(stream_id) or table.theirs.get(stream_id)
    if (
        stream is None
        or len(data) <= size  # cut off; or empty, which where it completes is no item in some dialects
        or stream.granted <= 0
        or not stream.open & RECEIVING
        or stream.request is not None
        or stream.assembly is not None
        or (inbound.dialect.request_repeats and not stream.requester)
    ):
        return 0
    if kind == plain.last or stream.interaction is Interaction.REQUEST_RESPONSE:
        stream.granted -= 1
        inbound.events.append(ItemReceived(stream, Payload(data[size:]), True))
        inbound.close_receiving(stream)
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
        inbound.events.append(ItemReceived(stream, payloads[0], False))
    else:
        inbound.events.append(ItemsReceived(stream, payloads))
    return taken


def _take_request(inbound: Inbound, stream_id: int, interaction: Interaction, payload: Payload) -> None:
    table = inbound.table
    if (
        stream_id in table.theirs
        or table.late
        or inbound.draining
        or inbound.granted is not None
        or interaction not in inbound.dialect.interactions
        or len(table.theirs) + inbound.detached >= inbound.limits.streams
        or table.learns
        or not table.is_peers(stream_id)
    ):
        # The request may be refused, or its parity is to be learnt.
        inbound.on_request(RequestFrame(stream_id, interaction, payload))
        return
    stream = Stream(stream_id, interaction, RESPONDERS_HALVES[interaction], requester=False)
    if interaction is Interaction.REQUEST_RESPONSE:
        stream.room = 1
        table.theirs[stream_id] = stream
    inbound.events.append(RequestReceived(stream, payload, True))


def _take_parts(inbound: Inbound, frames: Sequence[bytes], index: int, size: int, stream_id: int) -> int:
    """Take a fragment that is neither the first nor the last, and large ones like it that follow.

    Return the number taken, 0 if the first is unusual. ``size`` is the size of the header in bytes.
    """
    table, limits = inbound.table, inbound.limits
    data = frames[index]
    stream = table.mine.get(stream_id) or table.theirs.get(stream_id)
    if (
        stream is None
        or stream.assembly is None
        or len(data) <= size
        or not (stream.request is not None or stream.open & RECEIVING)
        or (inbound.dialect.request_repeats and not stream.requester)
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
        inbound.check_reassembly()
    except RemoteProtocolError as error:
        inbound.offence(stream, error)
    return 1
