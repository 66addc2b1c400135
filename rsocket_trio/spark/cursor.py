"""The cursor of a range: checks by position that each element arrives once and in order."""

from __future__ import annotations

from collections.abc import Sequence

from rsocket_trio.payload import Payload
from rsocket_trio.replay.element_metadata import read_source_payload
from rsocket_trio.replay.log import Record
from rsocket_trio.spark.protocol import POSITION_HEAD, UINT64
from rsocket_trio.spark.ranges import DataLossError, Range
from rsocket_trio.spark.records import Chunk, SchemaMismatchError


class Cursor:
    """The position of a reader in a range: everything below ``position`` was taken, or counted in ``lost``.

    With ``arrow`` an element may hold several rows, of which those outside of the range are left out. Without
    ``fail_on_loss`` a gap is counted instead of raised.
    """

    def __init__(self, range_: Range, *, arrow: bool, fail_on_loss: bool) -> None:
        self.partition = range_.partition
        self.position = range_.start
        self.end = range_.end
        self.lost = 0
        self._arrow = arrow
        self._fail_on_loss = fail_on_loss

    @property
    def is_done(self) -> bool:
        """Return whether the whole range was taken."""
        return self.position >= self.end

    def take(self, batch: Sequence[Payload], received_at: int) -> list[Chunk]:
        """Return the rows of received elements, in chunks without gaps. Rows that were taken before are left out.

        Raise ``DataLossError`` at a gap, and ``RemoteProtocolError`` for an element without a position.
        """
        chunks: list[Chunk] = []
        if self._arrow:
            for payload in batch:
                chunks += self._take_one(payload, received_at)
            return chunks
        head, pack, position, end = POSITION_HEAD, UINT64.pack, self.position, self.end
        datas: list[bytes] = []
        for index, payload in enumerate(batch):
            # The usual element: one row, the next one, and no metadata of its own.
            if payload.metadata == head + pack(position) and position < end:
                datas.append(payload.data)
                position += 1
                continue
            if datas:
                chunks.append(Chunk(self.position, datas, None, received_at))
                datas = []
            self.position = position
            taken = self._take_one(batch[index], received_at)
            _append(chunks, taken)
            position = self.position
        if datas:
            chunks.append(Chunk(self.position, datas, None, received_at))
        self.position = position
        return chunks

    def skip_to(self, position: int, reason: str) -> None:
        """Go on behind rows that are gone. Raise ``DataLossError`` unless that is accepted."""
        position = min(position, self.end)
        if position <= self.position:
            return
        if self._fail_on_loss:
            raise DataLossError(
                f"{reason}: positions {self.position} to {position - 1} of partition {self.partition} can't be read; "
                "with failOnDataLoss=false they are left out"
            )
        self.lost += position - self.position
        self.position = position

    def cut(self, end: int) -> None:
        """End the range earlier than planned: the rows behind are lost."""
        self.lost += self.end - end
        self.end = end

    def _take_one(self, payload: Payload, received_at: int) -> list[Chunk]:
        place = read_source_payload(payload)
        if place.position > self.position:
            self.skip_to(place.position, f"a gap before position {place.position}")
        low = self.position - place.position
        high = min(place.count, self.end - place.position)
        if low >= high:
            return []  # taken before, or beyond the end
        start, self.position = self.position, place.position + high
        if self._arrow:
            return [Chunk(start, [payload.data], None, received_at, (low, high, place.count))]
        self._check_single(place)
        return [Chunk(start, [payload.data], None if place.metadata is None else [place.metadata], received_at)]

    def _check_single(self, place: Record) -> None:
        if place.count != 1:
            raise SchemaMismatchError(
                f"the element at position {place.position} holds {place.count} rows: set payload=arrow"
            )


def _append(chunks: list[Chunk], more: list[Chunk]) -> None:
    """Append a chunk of one row, as a part of the last chunk if that is of its kind."""
    for chunk in more:
        last = chunks[-1] if chunks else None
        if (
            last is not None
            and last.metadatas is not None
            and chunk.metadatas is not None
            and last.start + len(last.datas) == chunk.start
        ):
            last.datas += chunk.datas
            last.metadatas += chunk.metadatas
        else:
            chunks.append(chunk)
