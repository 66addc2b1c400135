"""Finds and checks the columns of a sink when a write is planned, before a row is sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import attrs
from pyspark.sql.types import ArrayType, BinaryType, DataType, MapType, StringType, StructField, StructType

from rsocket_trio.spark.options import Options
from rsocket_trio.spark.records import RAW_SCHEMA, ROUTE_COMMENT, SchemaMismatchError

TEXT_OR_BYTES = (BinaryType, StringType)
TAKEN: dict[str, tuple[type[DataType], ...]] = {
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


@attrs.frozen
class Columns:
    """The indexes of the columns of raw rows; ``None`` for absent columns."""

    data: int
    metadata: int | None = None
    key: int | None = None
    headers: int | None = None
    route: int | None = None


def sink_columns(schema: StructType, options: Options) -> Columns | None:
    """Return the indexes of the columns, ``None`` for ``payload=arrow``, which takes any columns.

    Raise ``SchemaMismatchError`` that names every column that does not fit.
    """
    names = ["" if is_of_source(field) else field.name.lower() for field in schema.fields]
    if options.payload == "arrow":
        problems = [] if names else ["there are none"]
    else:
        problems = _problems(schema, names, options)
    if problems:
        raise SchemaMismatchError(f"the sink does not take these columns: {'; '.join(problems)}")
    if options.payload == "arrow":
        return None
    return Columns(**{name: names.index(name) for name in TAKEN if name in names})


def is_of_source(field: StructField) -> bool:
    """Return whether a column says where a row was read from: then it does not say where the row is to go."""
    return field.name.lower() == "route" and (field.metadata or {}).get("comment") == ROUTE_COMMENT


def are_headers(found: DataType) -> bool:
    """Return whether a type is one of names and contents; true of types that are no arrays and no maps."""
    if isinstance(found, MapType):
        return isinstance(found.keyType, StringType) and isinstance(found.valueType, TEXT_OR_BYTES)
    if not isinstance(found, ArrayType):
        return True
    header = found.elementType
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
            wanted = HEADERS_WANTED if name == "headers" else " or ".join(one.typeName().upper() for one in types)
            problems.append(f"column {field.name!r} is {field.dataType.simpleString().upper()}, wanted is {wanted}")
    if "route" in names and options.delivery == "exactlyOnce":
        problems.append("column 'route' needs a request for each row: delivery=atLeastOnce")
    return problems
