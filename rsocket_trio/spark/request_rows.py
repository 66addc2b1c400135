"""Encodes rows as requests: finds the columns of a sink, and makes data and metadata of them, some rows at a time."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, TypedDict

import attrs
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import ArrayType, BinaryType, DataType, MapType, StringType, StructField, StructType

from rsocket_trio import Payload
from rsocket_trio.metadata import ROUTING, Entry, encode_composite, encode_route
from rsocket_trio.metadata.composite import spans
from rsocket_trio.replay import elements
from rsocket_trio.replay.arrow_packs import HEADERS_TYPE as PACK_HEADERS
from rsocket_trio.replay.arrow_packs import encoded, pack_of
from rsocket_trio.replay.elements import ARROW, MAX_ENTRY_BYTES, MAX_NAME_BYTES, PACK_BYTES, PACK_ROWS, encode_headers
from rsocket_trio.spark.errors import RowError, SchemaMismatchError
from rsocket_trio.spark.options import Options
from rsocket_trio.spark.rows import HEADERS_TYPE, RAW_SCHEMA, ROUTE_COMMENT

PIECE_ROWS = 1024
PIECE_BYTES = 2**20
"""The size of a piece: it bounds the rows that wait, and makes steps between threads rare."""
REQUEST_BYTES = 4 * 2**20
"""Bytes of an Arrow payload, about, at most: half of what most peers reassemble."""
OVERHEAD = 64
"""Bytes that a request takes beside its data and metadata, about."""
_PACK = encode_composite([Entry(elements.PACK, ARROW.encode())])

TEXT_OR_BYTES = (BinaryType, StringType)
TAKEN: Final[dict[str, tuple[type[DataType], ...]]] = {
    "data": TEXT_OR_BYTES,
    "metadata": TEXT_OR_BYTES,
    "key": TEXT_OR_BYTES,
    "headers": (ArrayType, MapType),
    "route": (StringType,),
}
"""The columns of raw rows, and their types. ``data`` must be there."""
HEADERS_WANTED: Final = "ARRAY<STRUCT<NAME:STRING,VALUE:BINARY>> or MAP<STRING,BINARY>"
IGNORED = frozenset(RAW_SCHEMA.names) - frozenset(TAKEN)
"""The other columns of a raw source: ignored, so that its rows can be written as they are."""


# The columns of a sink


def sink_columns(schema: StructType, options: Options) -> dict[str, int] | None:
    """Return the indexes of the columns by name, ``None`` for ``payload=arrow``, which takes any columns.

    Raise ``SchemaMismatchError`` that names every column that does not fit.
    """
    names = ["" if is_of_source(field) else field.name.lower() for field in schema.fields]
    is_arrow = options.payload == "arrow"
    problems = (["there are none"] if not names else []) if is_arrow else _problems(schema, names, options)
    if problems:
        raise SchemaMismatchError(f"the sink does not take these columns: {'; '.join(problems)}")
    return None if is_arrow else {name: names.index(name) for name in TAKEN if name in names}


def is_of_source(field: StructField) -> bool:
    """Return whether a column says where a row was read from: then it does not say where the row is to go."""
    return field.name.lower() == "route" and (field.metadata or {}).get("comment") == ROUTE_COMMENT


def are_headers(kind: DataType) -> bool:
    """Return whether a type is one of names and contents; true of types that are no arrays and no maps."""
    if isinstance(kind, MapType):
        return isinstance(kind.keyType, StringType) and isinstance(kind.valueType, TEXT_OR_BYTES)
    if not isinstance(kind, ArrayType):
        return True
    header = kind.elementType
    if not isinstance(header, StructType) or header.fieldNames() != ["name", "value"]:
        return False
    return isinstance(header["name"].dataType, StringType) and isinstance(header["value"].dataType, TEXT_OR_BYTES)


def _problems(schema: StructType, names: Sequence[str], options: Options) -> list[str]:
    problems = []
    if "data" not in names:
        problems.append("column 'data' (BINARY or STRING) is missing; payload=arrow takes any columns")
    for field, name in zip(schema.fields, names, strict=True):
        types = TAKEN.get(name)
        if types is None:
            if name and name not in IGNORED:
                problems.append(
                    f"column {field.name!r} is none of {', '.join(TAKEN)}: leave it out, or set payload=arrow"
                )
        elif names.count(name) > 1:
            problems.append(f"column {field.name!r} comes twice")
        elif not isinstance(field.dataType, types) or not are_headers(field.dataType):
            expected = HEADERS_WANTED if name == "headers" else " or ".join(kind.typeName().upper() for kind in types)
            problems.append(f"column {field.name!r} is {field.dataType.simpleString().upper()}, wanted is {expected}")
    if "route" in names and options.delivery == "exactlyOnce":
        problems.append("column 'route' needs a request for each row: delivery=atLeastOnce")
    return problems


# Requests


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
        return json.dumps(attrs.asdict(self), separators=(",", ":")).encode()[:-1] + b',"seq":'


@attrs.define
class Piece:
    """Requests in a row: ``rows`` that they hold, and about the bytes that they take."""

    payloads: list[Payload]
    rows: int
    size: int


class Encoder:
    """Makes the requests of one task out of its record batches; ``rows`` are those in the requests made so far.

    Rows that are staged have no route and no origin, because a stage names them once; with ``packs`` they go in packs.
    Rows that can't be sent are an error, or are counted in ``skipped`` if the options say so; ``problem`` describes the
    first of them.
    """

    def __init__(
        self, columns: Mapping[str, int] | None, options: Options, origin: Origin, *, packs: bool = False
    ) -> None:
        self._columns = columns
        self._is_staged = options.delivery == "exactlyOnce"
        self._takes_packs = packs
        self._skips = options.error_policy == "skip"
        self._prefix = origin.prefix
        self._route = encoded_route(options.route)
        self._number = 0
        self._row = 0
        self.rows = 0
        self.skipped = 0
        self.problem: str | None = None

    def pieces(self, batch: pa.RecordBatch) -> Iterator[Piece]:
        """Encode the rows of a batch. Raise ``RowError``."""
        most, size = PIECE_ROWS, PIECE_BYTES
        if self._columns is None:
            most, size = batch.num_rows, REQUEST_BYTES
        elif self._takes_packs:
            most, size = PACK_ROWS, PACK_BYTES
        sent = batch if self._columns is None else batch.select(list(self._columns.values()))
        count = max(min(most, size * batch.num_rows // max(sent.nbytes, 1)), 1)
        for start in range(0, batch.num_rows, count):
            some = batch.slice(start, count)
            payloads, rows = self._arrow(some) if self._columns is None else self._pack(some), some.num_rows
            if payloads is None:
                payloads = self._requests(some)
                rows = len(payloads)
            self.rows += rows
            if payloads:
                yield Piece(payloads, rows, sum([payload.size + OVERHEAD for payload in payloads]))

    def _arrow(self, batch: pa.RecordBatch) -> list[Payload]:
        entry = Entry(elements.ROWS, batch.num_rows.to_bytes(4, "big"))
        return [Payload(encoded(batch), self._metadata([entry], self._route))]

    def _pack(self, batch: pa.RecordBatch) -> list[Payload] | None:
        """Return rows as a pack; ``None`` where packs are not taken, or a row has to be looked at alone."""
        columns = self._columns or {}
        contents = {name: binary(batch, columns[name]) for name in ("data", "metadata", "key") if name in columns}
        longest = [pc.max(pc.binary_length(contents[name])).as_py() or 0 for name in contents if name != "data"]
        if not self._takes_packs or max(longest, default=0) > MAX_ENTRY_BYTES:
            return None
        if "headers" in columns:
            headers = header_lists(batch, columns["headers"])
            if not are_sendable(headers):
                return None
            contents["headers"] = headers.cast(PACK_HEADERS)
        self._row += batch.num_rows
        return [Payload(pack_of(contents, count=batch.num_rows).data, _PACK)]

    def _requests(self, batch: pa.RecordBatch) -> list[Payload]:
        columns, nothing = self._columns or {}, [None] * batch.num_rows
        datas, keys, metadatas, routes = (
            binary(batch, columns[name]).to_pylist() if name in columns else nothing
            for name in ("data", "key", "metadata", "route")
        )
        lists = header_lists(batch, columns["headers"]).to_pylist() if "headers" in columns else nothing
        payloads = []
        for data, key, metadata, route, headers in zip(datas, keys, metadatas, routes, lists, strict=True):
            self._row += 1
            try:
                if data is None and not self._is_staged:
                    raise RowError("column 'data' is null, which needs delivery=exactlyOnce")
                encoded_name = encoded_route(route.decode()) if route else self._route
                entries = [] if data is not None else [Entry(elements.NULL, b"")]
                for name, mime, content in (
                    ("key", elements.KEY, key),
                    ("headers", elements.HEADERS, None if headers is None else encoded_headers(headers)),
                    ("metadata", elements.RECORD_METADATA, metadata),
                ):
                    if content is not None:
                        if len(content) > MAX_ENTRY_BYTES:
                            raise RowError(f"column {name!r} has {len(content)} bytes, the limit is {MAX_ENTRY_BYTES}")
                        entries.append(Entry(mime, content))
            except RowError as error:
                problem = f"row {self._row} of the task can't be sent: {error}"
                if not self._skips:
                    raise RowError(f"{problem}; errorPolicy=skip counts such rows and goes on") from None
                self.skipped += 1
                self.problem = self.problem or problem
            else:
                payloads.append(Payload(data or b"", self._metadata(entries, encoded_name)))
        return payloads

    def _metadata(self, entries: list[Entry], route: bytes) -> bytes | None:
        if self._is_staged:
            return encode_composite(entries) or None
        number, self._number = self._number, self._number + 1
        return route + encode_composite([*entries, Entry(elements.WRITE, b"%b%d}" % (self._prefix, number))])


def encoded_route(route: str) -> bytes:
    """Return the encoded entry of a route. Raise ``RowError`` for one that is too long."""
    try:
        return encode_composite([Entry(ROUTING, encode_route(route))])
    except ValueError as error:
        raise RowError(f"column 'route': {error}") from None


def binary(batch: pa.RecordBatch, index: int) -> pa.Array:
    column = batch.column(index)
    return column if pa.types.is_binary(column.type) else column.cast(pa.binary())


def header_lists(batch: pa.RecordBatch, index: int) -> pa.Array:
    """Return a column of headers, maps among them, as lists of names and bytes."""
    return batch.column(index).cast(HEADERS_TYPE)


def are_sendable(headers: pa.Array) -> bool:
    """Return whether all headers can be sent, as far as a look at the whole column tells."""
    pairs = headers.flatten()
    names = pc.struct_field(pairs, "name")
    longest = pc.max(pc.binary_length(names)).as_py() or 0
    return (
        not pairs.null_count
        and not names.null_count
        and longest <= MAX_NAME_BYTES
        and headers.nbytes <= MAX_ENTRY_BYTES
    )


class HeaderRow(TypedDict):
    """A header as a row has it."""

    name: str | None
    value: bytes | None


def encoded_headers(headers: Sequence[HeaderRow | None]) -> bytes:
    """Encode the headers of a row. Raise ``RowError`` for one that has no name, or one that is too long."""
    pairs = [
        (header["name"], header["value"]) for header in headers if header is not None and header["name"] is not None
    ]
    if len(pairs) < len(headers):
        raise RowError("column 'headers' has a header without a name")
    try:
        return encode_headers(pairs)
    except ValueError as error:
        raise RowError(f"column 'headers': {error}") from None


def rows_of(payload: Payload) -> int:
    metadata = payload.metadata or b""
    for mime, start, end in spans(metadata):
        if mime == elements.ROWS:
            return int.from_bytes(metadata[start:end], "big")
    return 1
