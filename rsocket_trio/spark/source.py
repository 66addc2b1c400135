"""The data source ``rsocket`` of Spark, and the reader or writer for each of its uses."""

from __future__ import annotations

import functools
from collections.abc import Callable, MutableMapping
from typing import TYPE_CHECKING, Concatenate, Final, ParamSpec, TypeVar

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
from pyspark.sql.types import StructType

from rsocket_trio.spark.batch_reader import BatchReader, PushdownReader, arrow_schema
from rsocket_trio.spark.errors import OptionError, SchemaMismatchError, in_one_line
from rsocket_trio.spark.live_reader import LiveStreamReader
from rsocket_trio.spark.options import Options, Use, checked, parse_options
from rsocket_trio.spark.rows import mismatch, raw_ddl, raw_schema
from rsocket_trio.spark.stream_reader import ServerStreamReader
from rsocket_trio.spark.writer import BatchWriter, StreamWriter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

P = ParamSpec("P")
R = TypeVar("R")
W = TypeVar("W", DataFrameWriter, DataStreamWriter)
NAME = "rsocket"
NO_TABLES: Final = (
    "there are no tables USING rsocket, because Spark passes the options of a table on to no source in Python: read "
    "with rsocket_trio.spark.create_view(spark, name, **options), and write with df.write.format('rsocket')"
)


class RSocketDataSource(DataSource):
    """The data source ``rsocket``: streams of RSocket peers as rows, and rows as requests.

    ``options`` are those given to ``option``, by name; docs/reference/spark.md lists them. Raise ``OptionError`` for an
    option that is unknown, missing or invalid.
    """

    @in_one_line
    def __init__(self, options: MutableMapping[str, str]) -> None:
        # The constructor of the base class would keep the texts, secrets among them, where repr shows them.
        self._given = dict(options.items())
        if "provider" in options:
            raise OptionError(NO_TABLES)
        if not options:
            # A table that was created with columns of its own gives none.
            raise OptionError(f"option 'path' is missing. Is this a table? But {NO_TABLES}")
        self._parsed = parse_options(self._given)
        self._is_new = True

    def __getstate__(self) -> dict[str, object]:
        # Spark makes a source for each micro-batch that it plans to write, and commits with a copy of an older one,
        # which need not ask the server.
        return self.__dict__ | {"_is_new": False}

    def __repr__(self) -> str:
        return f"RSocketDataSource({self._parsed!r})"

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format``."""
        return NAME

    @in_one_line
    def schema(self) -> str:
        """Return the columns of a read without a schema of its own."""
        if self._parsed.payload == "arrow":
            raise OptionError("option 'payload' arrow needs the columns: .schema('id BIGINT, ...')")
        return raw_ddl(self._parsed)

    @in_one_line
    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch with the columns of ``schema``, for ``spark.read``."""
        options = checked(parse_options(self._given, Use.BATCH_READ), Use.BATCH_READ)
        return (PushdownReader if options.pushdown else BatchReader)(options, columns(options, schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a stream with the columns of ``schema``, for ``spark.readStream``."""
        try:
            options = parse_options(self._given, Use.STREAM_READ)
            names = columns(options, schema)
            if options.positions == "none":
                return LiveStreamReader(options, names)
            # Its check raises the error for the missing option.
            return ServerStreamReader(options, names, exact_schema(schema))
        except (OptionError, SchemaMismatchError) as error:
            return ServerStreamReader(error.with_traceback(None), None)

    @in_one_line
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a batch with the columns of ``schema``, for ``df.write``. ``overwrite`` is refused."""
        options = checked(parse_options(self._given, Use.BATCH_WRITE), Use.BATCH_WRITE)
        return BatchWriter(options, schema, overwrite).planned()

    @in_one_line
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return the writer of a stream with the columns of ``schema``, for ``df.writeStream``. ``overwrite`` is
        refused.
        """
        options = checked(parse_options(self._given, Use.STREAM_WRITE), Use.STREAM_WRITE)
        made = StreamWriter(options, schema, overwrite)
        return made.planned() if self._is_new else made


def columns(options: Options, schema: StructType) -> pa.Schema | None:
    """Return the columns of a query, ``None`` for all columns of raw rows.

    Raise ``SchemaMismatchError`` for columns that raw rows do not have, and for such as no rows can have.
    """
    declared = arrow_schema(schema)
    if options.payload == "arrow":
        if problem := mismatch(declared, declared):
            raise SchemaMismatchError(f"the columns of the query can't be read: {problem}")
        return declared
    there = raw_schema(options)
    if schema.fieldNames() == there.names and not mismatch(there, declared):
        return None
    some = pa.schema([there.field(name) for name in declared.names if name in there.names])
    if problem := mismatch(some, declared):
        more = ", and headers with includeHeaders=true" * ("headers" in declared.names and not options.include_headers)
        raise SchemaMismatchError(
            f"with payload=raw the columns are {', '.join(there.names)}{more}: leave out .schema(...), which may "
            f"name some of them, or set payload=arrow ({problem})"
        )
    return some


def create_view(
    spark: SparkSession, name: str, *, schema: str | None = None, **options: bool | float | str | None
) -> None:
    """Make ``name`` a temporary view of the session ``spark``: its rows are those of a batch read with ``options``.

    ``schema`` are the columns of ``payload=arrow``, such as ``"id BIGINT, name STRING"``. Each use of the view reads
    anew.
    """
    reader = spark.read.format(NAME).options(**options)
    (reader if schema is None else reader.schema(schema)).load().createOrReplaceTempView(name)


def exact_schema(schema: StructType) -> pa.Schema | None:
    """Return the Arrow schema from which Spark reads exactly these columns, ``None`` for columns that have none."""
    exact = arrow_schema(schema)
    return exact if from_arrow_schema(exact) == schema else None


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
    session = getattr(spark, "_jsparkSession", None)
    if session is None:
        return False
    session.setActiveSession(session)
    return True


def _activating(write: Callable[Concatenate[W, P], R]) -> Callable[Concatenate[W, P], R]:
    @functools.wraps(write)
    def activated(writer: W, /, *args: P.args, **options: P.kwargs) -> R:
        make_active(writer._spark)
        return write(writer, *args, **options)

    return activated
