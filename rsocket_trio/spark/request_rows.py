"""Encodes rows as requests: columns become data and metadata, a limited number of rows at a time."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import attrs
import pyarrow as pa
import pyarrow.compute as pc

from rsocket_trio import Payload
from rsocket_trio.metadata import ROUTING, Entry, encode_composite, encode_route
from rsocket_trio.metadata.composite import spans
from rsocket_trio.metadata.mime import encode_mime
from rsocket_trio.replay.arrow_packs import HEADERS_TYPE, arrow_of, pack_rows, plain_of
from rsocket_trio.replay.element_metadata import (
    HEADERS,
    KEY,
    PACK,
    RECORD_METADATA,
    ROWS,
    WRITE,
    read_sink_payload,
    sink_payload,
)
from rsocket_trio.replay.elements import LONGEST_ENTRY, LONGEST_NAME
from rsocket_trio.replay.packs import PLAIN, Pack, elements_of, encode_headers
from rsocket_trio.spark.columns import Columns
from rsocket_trio.spark.hosting import Explained
from rsocket_trio.spark.options import Options

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

    ``is_staged`` leaves out the origin of each request: a stage names it once. ``is_routed`` puts the route
    in front, for requests of their own. ``form`` is the format of packs, ``None`` for rows one by one. Rows without
    data are an error, or are counted in ``skipped`` if the options say so; ``problem`` describes the first of them.
    """

    def __init__(
        self,
        columns: Columns | None,
        options: Options,
        origin: Origin,
        *,
        is_staged: bool,
        is_routed: bool,
        form: str | None = None,
    ) -> None:
        self._columns = columns
        self._options = options
        self._prefix = None if is_staged else origin.prefix
        self._routes: dict[bytes | None, bytes] = {None: route_entry(options.route) if is_routed else b""}
        self._is_routed = is_routed
        self._form = form
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
            rows = max(min(self._options.rows_per_request or batch.num_rows, REQUEST_BYTES // average), 1)
            for start in range(0, batch.num_rows, rows):
                part = batch.slice(start, rows)
                self.rows += part.num_rows
                yield self._arrow(part)
            return
        if self._form is not None and (encoded := list(self._packs(batch, self._columns, self._form))):
            yield from encoded
            return
        rows = max(min(PIECE_ROWS, PIECE_BYTES // average), 1)
        for start in range(0, batch.num_rows, rows):
            piece = self._raw(batch.slice(start, rows), self._columns)
            self.rows += piece.rows
            if piece.payloads:
                yield piece

    def _arrow(self, batch: pa.RecordBatch) -> Piece:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as stream:
            stream.write_batch(batch)
        data = sink.getvalue().to_pybytes()
        metadata = (
            self._routes[None] + self._write() + encode_composite([Entry(ROWS, batch.num_rows.to_bytes(4, "big"))])
        )
        return Piece([Payload(data, metadata)], batch.num_rows, len(data) + OVERHEAD)

    def _packs(self, batch: pa.RecordBatch, columns: Columns, form: str) -> Iterator[Piece]:
        """Yield the rows of a batch in packs; none where a row has to be looked at alone."""
        data = binary(batch, columns.data)
        others = [None if index is None else binary(batch, index) for index in (columns.metadata, columns.key)]
        headers = None if columns.headers is None else header_maps(batch, columns.headers)
        if headers is not None and not are_sendable(headers):
            return
        others.append(headers)
        longest = (pc.max(pc.binary_length(one)).as_py() or 0 for one in others[:2] if one is not None)
        if data.null_count or max(longest, default=0) > LONGEST_ENTRY:
            return
        rows = pack_rows(data, *others)
        said = encode_composite([Entry(PACK, form.encode())])
        encode = plain_of if form == PLAIN else arrow_of
        for start in range(0, batch.num_rows, rows):
            part = data.slice(start, rows)
            if len(part) == 1:
                # A server older than packs would take a pack of one row for that row, and its count would be right.
                piece = self._raw(batch.slice(start, 1), columns)
                self.rows += piece.rows
                yield piece
                continue
            content = encode(part, *(None if one is None else one.slice(start, rows) for one in others))
            self._row += len(part)
            self.rows += len(part)
            yield Piece([Payload(content, said)], len(part), len(content) + OVERHEAD)

    def _raw(self, batch: pa.RecordBatch, columns: Columns) -> Piece:
        datas = values(batch, columns.data)
        plain = columns.key is columns.metadata is columns.route is columns.headers is None
        if plain and None not in datas:
            self._row += len(datas)
            payloads = self._plain(datas)
        else:
            payloads = list(self._full(batch, columns, datas))
        size = sum([payload.size for payload in payloads]) + OVERHEAD * len(payloads)
        return Piece(payloads, len(payloads), size)

    def _plain(self, datas: list[bytes]) -> list[Payload]:
        """Return the requests of rows with data alone: the usual ones, so this is the fast way."""
        if self._prefix is None:
            return [Payload(data) for data in datas]
        first, self._seq = self._seq, self._seq + len(datas)
        head, prefix, size = self._routes[None] + _WRITE_HEAD, self._prefix, len(self._prefix) + 1
        made = []
        for seq, data in enumerate(datas, first):
            digits = b"%d" % seq
            made.append(Payload(data, b"%b%b%b%b}" % (head, (size + len(digits)).to_bytes(3, "big"), prefix, digits)))
        return made

    def _full(self, batch: pa.RecordBatch, columns: Columns, datas: list[Any]) -> Iterator[Payload]:
        nothing = [None] * len(datas)
        keys, metadatas, routes = (
            nothing if index is None else values(batch, index)
            for index in (columns.key, columns.metadata, columns.route)
        )
        maps = nothing if columns.headers is None else header_maps(batch, columns.headers).to_pylist()
        for data, key, metadata, route, headers in zip(datas, keys, metadatas, routes, maps, strict=True):
            self._row += 1
            try:
                if data is None:
                    raise RowError("column 'data' is null")
                said = self._route(route)
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
                yield Payload(data, said or None)

    def _write(self) -> bytes:
        if self._prefix is None:
            return b""
        seq, self._seq = self._seq, self._seq + 1
        return entry(_WRITE_HEAD, b"%b%d}" % (self._prefix, seq))

    def _route(self, route: bytes | None) -> bytes:
        if not route or not self._is_routed:
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


def header_maps(batch: pa.RecordBatch, index: int) -> pa.Array:
    """Return a column of headers as maps of text to bytes."""
    column = batch.column(index)
    return column if column.type.equals(HEADERS_TYPE) else column.cast(HEADERS_TYPE)


def are_sendable(headers: pa.Array) -> bool:
    """Return whether all headers can be sent, as far as a look at the whole column tells."""
    names = pc.max(pc.binary_length(headers.keys)).as_py() or 0
    return headers.items.null_count == 0 and names <= LONGEST_NAME and headers.nbytes <= LONGEST_ENTRY


def encoded_headers(headers: Sequence[tuple[str, bytes | None]]) -> bytes:
    """Encode the headers of a row. Raise ``RowError`` for a name that is too long, or that has no content."""
    for name, content in headers:
        if (length := len(name.encode())) > LONGEST_NAME:
            raise RowError(f"column 'headers' has a name of {length} bytes, the limit is {LONGEST_NAME}")
        if content is None:
            raise RowError(f"column 'headers' has null for {name!r}")
    return encode_headers({name: content for name, content in headers if content is not None})


def values(batch: pa.RecordBatch, index: int) -> list[Any]:
    """Return a column of bytes or text as bytes, ``None`` for null."""
    found: list[Any] = binary(batch, index).to_pylist()
    return found


def one_by_one(piece: Piece) -> Piece:
    """Return the requests of a piece with each row of a pack as a request of its own, for a stage without packs."""
    payloads: list[Payload] = []
    for payload in piece.payloads:
        element = read_sink_payload(payload, staged=True).element
        if isinstance(element, Pack):
            payloads += map(sink_payload, elements_of(element))
        else:
            payloads.append(payload)
    return Piece(payloads, piece.rows, piece.size)


def rows_of(payload: Payload) -> int:
    """Return the number of rows in a request of this sink."""
    metadata = payload.metadata or b""
    for mime, start, end in spans(metadata):
        if mime == ROWS:
            return int.from_bytes(metadata[start:end], "big")
    return 1
