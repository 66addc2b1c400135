"""Encodes rows as requests: finds the columns of a sink, and makes data and metadata of them, some rows at a time."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypedDict

import attrs
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import ArrayType, BinaryType, DataType, MapType, StringType, StructField, StructType

from rsocket_trio import Payload
from rsocket_trio.metadata import ROUTING, Entry, encode_composite, encode_route
from rsocket_trio.replay.arrow_packs import HEADERS_TYPE, encoded, pack_of
from rsocket_trio.replay.elements import (
    ARROW,
    MAX_ENTRY_BYTES,
    PACK_BYTES,
    PACK_ROWS,
    Element,
    Headers,
    RecordEntry,
    check_element,
)
from rsocket_trio.spark.errors import RowError, SchemaMismatchError
from rsocket_trio.spark.options import Options
from rsocket_trio.spark.rows import RAW_SCHEMA, ROUTE_COMMENT

PIECE_ROWS = 1024
PIECE_BYTES = 2**20
"""The size of a piece: it bounds the rows that wait, and makes steps between threads rare."""
REQUEST_BYTES = 4 * 2**20
"""Bytes of an Arrow payload, about, at most: half of what most peers reassemble."""
OVERHEAD = 64
"""Bytes that a request takes beside its data and metadata, about."""

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


class RequestEntry(RecordEntry, frozen=True, omit_defaults=True):
    """The entry of a request outside of a stage: also its writer, an ``Origin``, and its number among the writer's."""

    sink: str | None = None
    query: str | None = None
    batch: int | None = None
    attempt: str | None = None
    seq: int | None = None


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
        self._origin = attrs.asdict(origin)
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
        return [Payload(encoded(batch), self._metadata(self._route, count=batch.num_rows))]

    def _pack(self, batch: pa.RecordBatch) -> list[Payload] | None:
        """Return rows as a pack; ``None`` where packs are not taken, or a row has to be looked at alone."""
        columns = self._columns or {}
        contents = {name: binary(batch, columns[name]) for name in ("data", "metadata", "key") if name in columns}
        if "headers" in columns:
            contents["headers"] = header_lists(batch, columns["headers"])
            if pc.struct_field(contents["headers"].flatten(), "name").null_count:
                return None
        size = sum([content.nbytes for name, content in contents.items() if name != "data"])
        if not self._takes_packs or size > MAX_ENTRY_BYTES:
            return None
        self._row += batch.num_rows
        pack = pack_of(pa.RecordBatch.from_pydict(contents), batch.num_rows)
        return [Payload(pack.data, RecordEntry(count=pack.count, pack=ARROW).encoded())]

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
                pairs = None if headers is None else pairs_of(headers)
                check_element(Element(None, metadata, key=key, headers=pairs))
            except ValueError as error:
                problem = f"row {self._row} of the task can't be sent: {error}"
                if not self._skips:
                    raise RowError(f"{problem}; errorPolicy=skip counts such rows and goes on") from None
                self.skipped += 1
                self.problem = self.problem or problem
            else:
                entry = self._metadata(encoded_name, is_null=data is None, metadata=metadata, key=key, headers=pairs)
                payloads.append(Payload(data or b"", entry))
        return payloads

    def _metadata(self, route: bytes, *, is_null: bool = False, **content: Any) -> bytes | None:
        if self._is_staged:
            return RecordEntry(**content).encoded(is_null=is_null) or None
        number, self._number = self._number, self._number + 1
        return route + RequestEntry(**content, **self._origin, seq=number).encoded()


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


class HeaderRow(TypedDict):
    """A header as a row has it."""

    name: str | None
    value: bytes | None


def pairs_of(headers: Sequence[HeaderRow | None]) -> Headers:
    """Return the headers of a row as pairs. Raise ``RowError`` for one that has no name."""
    pairs = [
        (header["name"], header["value"]) for header in headers if header is not None and header["name"] is not None
    ]
    if len(pairs) < len(headers):
        raise RowError("column 'headers' has a header without a name")
    return pairs
