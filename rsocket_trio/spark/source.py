"""The data source ``rsocket`` of Spark, and the reader or writer for each of its uses."""

from __future__ import annotations

import functools
import re
import zlib
from collections.abc import Callable, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, quote, urlencode

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.readwriter import DataFrameWriter
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StringType, StructType

from rsocket_trio.spark.checks import checked
from rsocket_trio.spark.hosting import in_one_line
from rsocket_trio.spark.live_streaming import MemoryStreamReader, WalStreamReader
from rsocket_trio.spark.options import (
    ALIASES,
    KNOWN,
    SPARKS_OWN,
    TABLE_PREFIX,
    OptionError,
    Options,
    Use,
    parse_options,
)
from rsocket_trio.spark.reading import BatchReader, PushdownReader, arrow_schema
from rsocket_trio.spark.records import SchemaMismatchError, mismatch, raw_ddl, raw_schema
from rsocket_trio.spark.streaming import RefusedStreamReader, ServerStreamReader, StreamReader
from rsocket_trio.spark.writing import BatchWriter, StreamWriter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME = "rsocket"
TABLE_MARK: Final = "rsocket options: "
"""Begins the comment in which the last column of a table in a catalog keeps the table's options."""
OF_TABLES: Final = (
    "A table in a catalog has its options only if it was created without columns: those of payload=arrow and of a sink "
    "go into its option 'schema'"
)
HINTS: Final[Mapping[Use, str]] = {
    Use.BATCH_READ: OF_TABLES,
    Use.STREAM_READ: OF_TABLES,
    Use.BATCH_WRITE: f"{OF_TABLES}, with a column of type STRING in it, such as key",
    Use.STREAM_WRITE: "toTable needs the options of the table once more: Spark passes none of them on",
}
"""The reason why options may be missing, by the use of a table."""
NO_STRINGS: Final = re.compile(r"\b(?:VARCHAR|CHAR|CHARACTER|COLLATE)\b", re.IGNORECASE)
STRING_COLUMN: Final = re.compile(r"^(\s*(?:`[^`]*`|\w+)\s*[:\s]\s*)STRING\b", re.IGNORECASE)
PLACE: Final = frozenset({"path", "uri", "route", "routes", "routepattern"})
"""Options that say where rows are. A query of a table gives none of them."""
STREAM_READERS: Mapping[str | None, type[StreamReader]] = {
    "server": ServerStreamReader,
    "wal": WalStreamReader,
    "none": MemoryStreamReader,
    # Its check raises the error for the missing option.
    None: ServerStreamReader,
}


class RSocketDataSource(DataSource):
    """The data source ``rsocket``: streams of RSocket peers as rows, and rows as requests.

    ``options`` are those given to ``option``, by name; docs/reference/spark.md lists them. Raise ``OptionError`` for an
    option that is unknown, missing or invalid.
    """

    @in_one_line
    def __init__(self, options: MutableMapping[str, str]) -> None:
        # The constructor of the base class would keep the texts, secrets among them, where repr shows them.
        self._given = without_properties(dict(options.items()))
        self._is_table = "provider" in options
        # Of a query of a table Spark gives the options that the query added; the table's come with its columns.
        self._parsed = None if self._may_be_of_table else parse_options(self._given)

    def __repr__(self) -> str:
        return f"RSocketDataSource({self._parsed!r})"

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format``."""
        return NAME

    @in_one_line
    def schema(self) -> str:
        """Return the columns of a read without a schema of its own, and of a table that is created without columns."""
        options = self._parsed or parse_options(self._given)
        found = options.schema or raw_ddl(options)
        if options.schema is None and options.payload == "arrow":
            raise OptionError(
                "option 'payload' arrow needs the columns: .schema('id BIGINT, ...'), or option 'schema' of a table"
            )
        return with_table_options(found, self._given) if self._is_table else found

    @in_one_line
    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch with the columns of ``schema``, for ``spark.read``."""
        options = checked(self._options(Use.BATCH_READ, schema), Use.BATCH_READ)
        return (PushdownReader if options.pushdown else BatchReader)(options, columns(options, schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a stream with the columns of ``schema``, for ``spark.readStream``."""
        try:
            options = self._options(Use.STREAM_READ, schema)
            wanted = columns(options, schema)
            if options.positions == "server":
                return ServerStreamReader(options, wanted, exact_schema(schema))
            return STREAM_READERS[options.positions](options, wanted)
        except (OptionError, SchemaMismatchError) as error:
            return RefusedStreamReader(error.with_traceback(None))

    @in_one_line
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a batch with the columns of ``schema``, for ``df.write``. ``overwrite`` is refused."""
        return BatchWriter(checked(self._options(Use.BATCH_WRITE, schema), Use.BATCH_WRITE), schema, overwrite)

    @in_one_line
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return the writer of a stream with the columns of ``schema``, for ``df.writeStream``. ``overwrite`` is
        refused.
        """
        return StreamWriter(checked(self._options(Use.STREAM_WRITE, schema), Use.STREAM_WRITE), schema, overwrite)

    @property
    def _may_be_of_table(self) -> bool:
        return PLACE.isdisjoint(name.lower() for name in self._given)

    def _options(self, use: Use, schema: StructType) -> Options:
        if not self._may_be_of_table:
            return parse_options(self._given, use)
        kept = table_options(schema)
        # Columns of a query keep the comments of the tables that they come from: see with_table_options.
        is_certain = use & Use.READ or any(isinstance(field.dataType, StringType) for field in schema.fields)
        if kept is None or not is_certain:
            raise OptionError(f"option 'path' is missing. {HINTS[use]}")
        fitting = {name: text for name, text in kept.items() if KNOWN[name][1].use & use}
        return parse_options(fitting | {name.lower(): text for name, text in self._given.items()}, use)


def without_properties(given: Mapping[str, str]) -> dict[str, str]:
    """Return the options of ``given`` without the properties of a table, which a catalog mixes in."""
    names = {name.lower() for name in given}
    return {
        name: text
        for name, text in given.items()
        if "provider" not in names
        or f"{TABLE_PREFIX}{name.lower()}" in names
        or ALIASES.get(name.lower(), name.lower()) in KNOWN
    }


def with_table_options(ddl: str, given: Mapping[str, str]) -> str:
    """Return the columns ``ddl`` with the options of a table in the comment of the last one.

    Spark gives no options of a table to a source in Python: its columns are all that comes back when it is used. Rows
    that are inserted get the comments of the table's columns if their own columns differ from them; otherwise they
    keep the comments of the table that they were read from. So columns of text are of a length that is the table's own,
    which no other rows have. Raise ``OptionError`` for secrets, which the comment would show, and for columns that
    leave no room for it.
    """
    kept = {}
    for key, text in given.items():
        name = ALIASES.get(key.lower(), key.lower())
        if name in SPARKS_OWN or name.startswith(TABLE_PREFIX):
            continue
        known = KNOWN[name][1]
        if known.secret and not name.startswith("tls."):
            raise OptionError(
                f"option {known.name!r} is secret, and a table would show it: give it to each query, as in "
                f"spark.read.option({known.name!r}, ...).table(...)"
            )
        if name != "schema":
            kept[name] = text
    if ddl.rstrip().endswith(("'", '"')):
        raise OptionError("option 'schema' must not end with a comment: that of the last column keeps the options")
    if found := NO_STRINGS.search(ddl):
        raise OptionError(f"option 'schema' has {found[0].upper()}: text in a table is of type STRING")
    comment = urlencode(sorted(kept.items()), quote_via=quote, safe=":/,.{} ")
    length = 2**30 + zlib.crc32(comment.encode()) % 2**30
    own = [STRING_COLUMN.sub(rf"\g<1>VARCHAR({length})", column) for column in split_columns(ddl)]
    return f"{','.join(own)} COMMENT '{TABLE_MARK}{comment}'"


def split_columns(ddl: str) -> list[str]:
    """Split columns in Spark's notation at the commas between them: those within types and quotes stay."""
    found, depth, quoted = [""], 0, ""
    for character in ddl:
        if quoted:
            quoted = "" if character == quoted else quoted
        elif character in "`'\"":
            quoted = character
        else:
            depth += (character in "<(") - (character in ">)")
        if character == "," and not depth and not quoted:
            found.append("")
        else:
            found[-1] += character
    return found


def table_options(schema: StructType) -> dict[str, str] | None:
    """Return the options that the columns of a table keep, ``None`` for other columns."""
    for field in schema.fields:
        comment = str((field.metadata or {}).get("comment", ""))
        if comment.startswith(TABLE_MARK):
            found = dict(parse_qsl(comment.removeprefix(TABLE_MARK), keep_blank_values=True))
            return {name: text for name, text in found.items() if name in KNOWN}
    return None


def columns(options: Options, schema: StructType) -> pa.Schema | None:
    """Return the columns of a query, ``None`` for all columns of raw rows.

    Raise ``SchemaMismatchError`` for columns that raw rows do not have.
    """
    wanted = arrow_schema(schema)
    if options.payload == "arrow":
        return wanted
    there = raw_schema(options)
    if schema.fieldNames() == there.names and not mismatch(there, wanted):
        return None
    some = pa.schema([there.field(name) for name in wanted.names if name in there.names])
    if problem := mismatch(some, wanted):
        more = ", and headers with includeHeaders=true" * ("headers" in wanted.names and not options.include_headers)
        raise SchemaMismatchError(
            f"with payload=raw the columns are {', '.join(there.names)}{more}: leave out .schema(...), which may "
            f"name some of them, or set payload=arrow ({problem})"
        )
    return some


def exact_schema(schema: StructType) -> pa.Schema | None:
    """Return the Arrow schema from which Spark reads exactly these columns, ``None`` for columns that have none."""
    found = arrow_schema(schema)
    return found if from_arrow_schema(found) == schema else None


def register(spark: SparkSession) -> None:
    """Make ``format("rsocket")`` known to the session ``spark``, in every thread. Not needed in the thread that made
    the session if ``pyspark_rsocket`` is installed.
    """
    spark.dataSource.register(RSocketDataSource)
    activate(spark)


def activate(spark: SparkSession) -> None:
    """Let rows be written to ``rsocket`` from every thread of this process. ``spark`` is the session.

    Before a write or the start of a query, Spark looks sources in Python up in the session that is active in the
    calling thread, and in a thread of Python's own there is none. From now on, Spark's writers make their session
    active first. One call in a process is enough. With Spark Connect this does nothing: there the server looks up.
    """
    if make_active(spark):
        for writer, name in WRITES:
            write = getattr(writer, name)
            if not hasattr(write, "__wrapped__"):
                setattr(writer, name, _activating(write))


WRITES: Final[tuple[tuple[type, str], ...]] = (
    (DataStreamWriter, "start"),
    (DataStreamWriter, "toTable"),
    (DataFrameWriter, "save"),
)
"""The methods of Spark's writers that look a sink up."""


def make_active(spark: SparkSession) -> bool:
    """Make the session that of the calling thread in the JVM. Return ``False`` if there is no JVM in this process."""
    found = getattr(spark, "_jsparkSession", None)
    if found is None:
        return False
    found.setActiveSession(found)
    return True


def _activating(write: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(write)
    def activated(writer: Any, *args: Any, **options: Any) -> Any:
        make_active(writer._spark)
        return write(writer, *args, **options)

    return activated
