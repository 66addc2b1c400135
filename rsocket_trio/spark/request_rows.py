"""Encodes rows as requests: columns become data and metadata, a limited number of rows at a time."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs
import pyarrow as pa
import pyarrow.compute as pc

from rsocket_trio import Payload
from rsocket_trio.metadata import ROUTING, Entry, encode_composite, encode_route
from rsocket_trio.metadata.composite import spans
from rsocket_trio.metadata.mime import encode_mime
from rsocket_trio.replay.arrow_packs import HEADERS_TYPE as PACK_HEADERS
from rsocket_trio.replay.arrow_packs import encoded, pack_of
from rsocket_trio.replay.element_metadata import (
    HEADERS,
    KEY,
    NULL,
    PACK,
    RECORD_METADATA,
    ROWS,
    WRITE,
)
from rsocket_trio.replay.elements import ARROW, LONGEST_ENTRY, LONGEST_NAME, PACK_BYTES, PACK_ROWS, encode_headers
from rsocket_trio.spark.columns import Columns
from rsocket_trio.spark.hosting import Explained
from rsocket_trio.spark.options import Options
from rsocket_trio.spark.records import HEADERS_TYPE

PIECE_ROWS = 1024
PIECE_BYTES = 2**20
"""The size of a piece: it bounds the rows that wait, and makes steps between threads rare."""
REQUEST_BYTES = 4 * 2**20
"""Bytes of an Arrow payload, about, at most: half of what most peers reassemble."""
OVERHEAD = 64
"""Bytes that a request takes beside its data and metadata, about."""

_WRITE_HEAD = encode_mime(WRITE)
_KEY_HEAD = encode_mime(KEY)
_HEADERS_HEAD = encode_mime(HEADERS)
_METADATA_HEAD = encode_mime(RECORD_METADATA)
_NULL = encode_composite([Entry(NULL, b"")])
_PACK = encode_composite([Entry(PACK, ARROW.encode())])


class RowError(Explained, ValueError):
    """A row can't be sent as it is; the message names the column."""


@attrs.frozen
class Origin:
    """The writer's identity, by which a server detects repeated writes. Only streams set ``query`` and ``batch``."""

    sink: str
    partition: int = 0
    query: str | None = None
    batch: int | None = None
    attempt: str = attrs.field(factory=lambda: str(uuid.uuid4()))

    @property
    def prefix(self) -> bytes:
        """Return the content of the write entry, up to the number of the element."""
        said = {"sink": self.sink, "query": self.query, "batch": self.batch, "partition": self.partition}
        said |= {"attempt": self.attempt}
        return json.dumps(said, separators=(",", ":")).encode()[:-1] + b',"seq":'


@attrs.define
class Piece:
    """Requests in a row: ``rows`` that they hold, and about the bytes that they take."""

    payloads: list[Payload]
    rows: int
    size: int


def entry(head: bytes, content: bytes) -> bytes:
    """Return a composite entry whose MIME type is encoded already."""
    return head + len(content).to_bytes(3, "big") + content


class Encoder:
    """Makes the requests of one task out of its record batches; ``rows`` are those in the requests made so far.

    ``is_staged`` leaves out the route and the origin of each request: a stage names them once. ``packs`` says whether
    rows go in packs or one by one. Rows that can't be sent are an error, or are counted in ``skipped`` if the options
    say so; ``problem`` describes the first of them. Those without data can be staged only.
    """

    def __init__(
        self,
        columns: Columns | None,
        options: Options,
        origin: Origin,
        *,
        is_staged: bool,
        packs: bool = False,
    ) -> None:
        self._columns = columns
        self._options = options
        self._prefix = None if is_staged else origin.prefix
        self._routes: dict[bytes | None, bytes] = {None: b"" if is_staged else route_entry(options.route)}
        self._takes_packs = packs
        self._seq = 0
        self._row = 0
        self.rows = 0
        self.skipped = 0
        self.problem: str | None = None

    def pieces(self, batch: pa.RecordBatch) -> Iterator[Piece]:
        """Encode the rows of a batch. Raise ``RowError``."""
        if not batch.num_rows:
            return
        average = max(batch.nbytes // batch.num_rows, 1)
        if self._columns is None:
            rows = max(min(batch.num_rows, REQUEST_BYTES // average), 1)
            for start in range(0, batch.num_rows, rows):
                part = batch.slice(start, rows)
                self.rows += part.num_rows
                yield self._arrow(part)
            return
        if self._takes_packs and (packs := list(self._packs(batch, self._columns))):
            yield from packs
            return
        rows = max(min(PIECE_ROWS, PIECE_BYTES // average), 1)
        for start in range(0, batch.num_rows, rows):
            piece = self._raw(batch.slice(start, rows), self._columns)
            self.rows += piece.rows
            if piece.payloads:
                yield piece

    def _arrow(self, batch: pa.RecordBatch) -> Piece:
        data = encoded(batch)
        metadata = (
            self._routes[None] + self._write() + encode_composite([Entry(ROWS, batch.num_rows.to_bytes(4, "big"))])
        )
        return Piece([Payload(data, metadata)], batch.num_rows, len(data) + OVERHEAD)

    def _packs(self, batch: pa.RecordBatch, columns: Columns) -> Iterator[Piece]:
        """Yield the rows of a batch in packs; none where a row has to be looked at alone."""
        wanted = {
            name: binary(batch, index)
            for name in ("data", "metadata", "key")
            if (index := getattr(columns, name)) is not None
        }
        longest = [pc.max(pc.binary_length(wanted[name])).as_py() or 0 for name in wanted if name != "data"]
        if max(longest, default=0) > LONGEST_ENTRY:
            return
        if columns.headers is not None:
            headers = header_lists(batch, columns.headers)
            if not are_sendable(headers):
                return
            wanted["headers"] = headers.cast(PACK_HEADERS)
        size = sum(column.nbytes for column in wanted.values())
        rows = max(min(PACK_ROWS, PACK_BYTES * batch.num_rows // max(size, 1)), 1)
        for start in range(0, batch.num_rows, rows):
            count = min(rows, batch.num_rows - start)
            pack = pack_of({name: column.slice(start, rows) for name, column in wanted.items()}, count=count)
            self._row += count
            self.rows += count
            yield Piece([Payload(pack.data, _PACK)], count, pack.size + OVERHEAD)

    def _raw(self, batch: pa.RecordBatch, columns: Columns) -> Piece:
        datas = values(batch, columns.data)
        if self._prefix is None and columns.key is columns.metadata is columns.headers is None and None not in datas:
            # Staged rows with data alone are the usual ones.
            self._row += len(datas)
            payloads = [Payload(data) for data in datas]
        else:
            payloads = list(self._full(batch, columns, datas))
        size = sum([payload.size for payload in payloads]) + OVERHEAD * len(payloads)
        return Piece(payloads, len(payloads), size)

    def _full(self, batch: pa.RecordBatch, columns: Columns, datas: list[Any]) -> Iterator[Payload]:
        nothing = [None] * len(datas)
        keys, metadatas, routes = (
            nothing if index is None else values(batch, index)
            for index in (columns.key, columns.metadata, columns.route)
        )
        lists = nothing if columns.headers is None else header_lists(batch, columns.headers).to_pylist()
        for data, key, metadata, route, headers in zip(datas, keys, metadatas, routes, lists, strict=True):
            self._row += 1
            try:
                if data is None and self._prefix is not None:
                    raise RowError("column 'data' is null, which needs delivery=exactlyOnce")
                said = self._route(route)
                if data is None:
                    said += _NULL
                if key is not None:
                    said += entry(_KEY_HEAD, fitting("key", key))
                if headers is not None:
                    said += entry(_HEADERS_HEAD, fitting("headers", encoded_headers(headers)))
                if metadata is not None:
                    said += entry(_METADATA_HEAD, fitting("metadata", metadata))
            except RowError as error:
                problem = f"row {self._row} of the task can't be sent: {error}"
                if self._options.error_policy == "fail":
                    raise RowError(f"{problem}; errorPolicy=skip counts such rows and goes on") from None
                self.skipped += 1
                self.problem = self.problem or problem
            else:
                said += self._write()
                yield Payload(data or b"", said or None)

    def _write(self) -> bytes:
        if self._prefix is None:
            return b""
        seq, self._seq = self._seq, self._seq + 1
        return entry(_WRITE_HEAD, b"%b%d}" % (self._prefix, seq))

    def _route(self, route: bytes | None) -> bytes:
        if not route or self._prefix is None:
            return self._routes[None]
        found = self._routes.get(route)
        if found is None:
            try:
                found = route_entry(route.decode())
            except ValueError as error:
                raise RowError(f"column 'route': {error}") from None
            if len(self._routes) < PIECE_ROWS:
                self._routes[route] = found
        return found


def route_entry(route: str) -> bytes:
    """Encode a route as a composite entry. Raise ``ValueError`` for one that is too long."""
    return encode_composite([Entry(ROUTING, encode_route(route))])


def fitting(column: str, content: bytes) -> bytes:
    """Return the content. Raise ``RowError`` if it is too long for an entry."""
    if len(content) >= 1 << 24:
        raise RowError(f"column {column!r} has {len(content)} bytes, the limit is {(1 << 24) - 1}")
    return content


def binary(batch: pa.RecordBatch, index: int) -> pa.Array:
    """Return a column of bytes or text as an array of bytes."""
    column = batch.column(index)
    return column if pa.types.is_binary(column.type) else column.cast(pa.binary())


def header_lists(batch: pa.RecordBatch, index: int) -> pa.Array:
    """Return a column of headers, maps among them, as lists of names and bytes."""
    return batch.column(index).cast(HEADERS_TYPE)


def are_sendable(headers: pa.Array) -> bool:
    """Return whether all headers can be sent, as far as a look at the whole column tells."""
    each = headers.flatten()
    names = pc.struct_field(each, "name")
    longest = pc.max(pc.binary_length(names)).as_py() or 0
    return not each.null_count and not names.null_count and longest <= LONGEST_NAME and headers.nbytes <= LONGEST_ENTRY


def encoded_headers(headers: Sequence[Mapping[str, Any] | None]) -> bytes:
    """Encode the headers of a row. Raise ``RowError`` for one that has no name, or one that is too long."""
    pairs: list[tuple[str, bytes | None]] = []
    for one in headers:
        if one is None or one["name"] is None:
            raise RowError("column 'headers' has a header without a name")
        if (length := len(one["name"].encode())) > LONGEST_NAME:
            raise RowError(f"column 'headers' has a name of {length} bytes, the limit is {LONGEST_NAME}")
        pairs.append((one["name"], one["value"]))
    return encode_headers(pairs)


def values(batch: pa.RecordBatch, index: int) -> list[Any]:
    """Return a column of bytes or text as bytes, ``None`` for null."""
    found: list[Any] = binary(batch, index).to_pylist()
    return found


def rows_of(payload: Payload) -> int:
    """Return the number of rows in a request of this sink."""
    metadata = payload.metadata or b""
    for mime, start, end in spans(metadata):
        if mime == ROWS:
            return int.from_bytes(metadata[start:end], "big")
    return 1
