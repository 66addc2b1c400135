"""The data source ``rsocket`` of Spark, and the reader or writer for each of its uses."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from rsocket_trio.spark.checks import checked
from rsocket_trio.spark.hosting import in_one_line
from rsocket_trio.spark.live_streaming import MemoryStreamReader, WalStreamReader
from rsocket_trio.spark.options import OptionError, Options, Use, parse_options
from rsocket_trio.spark.reading import BatchReader, PushdownReader, arrow_schema
from rsocket_trio.spark.records import RAW_DDL, RAW_SCHEMA, SchemaMismatchError, mismatch
from rsocket_trio.spark.streaming import RefusedStreamReader, ServerStreamReader, StreamReader
from rsocket_trio.spark.writing import BatchWriter, StreamWriter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME = "rsocket"
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
        self._given = dict(options.items())
        self._parsed = parse_options(self._given)

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
        return RAW_DDL

    @in_one_line
    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch with the columns of ``schema``, for ``spark.read``."""
        options = checked(self._options(Use.BATCH_READ), Use.BATCH_READ)
        return (PushdownReader if options.pushdown else BatchReader)(options, columns(options, schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a stream with the columns of ``schema``, for ``spark.readStream``."""
        try:
            options = self._options(Use.STREAM_READ)
            return STREAM_READERS[options.positions](options, columns(options, schema))
        except (OptionError, SchemaMismatchError) as error:
            return RefusedStreamReader(error.with_traceback(None))

    @in_one_line
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a batch with the columns of ``schema``, for ``df.write``. ``overwrite`` is refused."""
        return BatchWriter(checked(self._options(Use.BATCH_WRITE), Use.BATCH_WRITE), schema, overwrite)

    @in_one_line
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return the writer of a stream with the columns of ``schema``, for ``df.writeStream``. ``overwrite`` is
        refused.
        """
        return StreamWriter(checked(self._options(Use.STREAM_WRITE), Use.STREAM_WRITE), schema, overwrite)

    def _options(self, use: Use) -> Options:
        return parse_options(self._given, use)


def columns(options: Options, schema: StructType) -> pa.Schema | None:
    """Return the schema of Arrow payloads, ``None`` for raw rows.

    Raise ``SchemaMismatchError`` for other raw columns.
    """
    if options.payload == "arrow":
        return arrow_schema(schema)
    problem = mismatch(RAW_SCHEMA, arrow_schema(schema))
    if problem or schema.fieldNames() != RAW_SCHEMA.names:
        raise SchemaMismatchError(
            f"with payload=raw the columns are {RAW_DDL}: leave out .schema(...), or set payload=arrow"
            + (f" ({problem})" if problem else "")
        )
    return None


def register(spark: SparkSession) -> None:
    """Make ``format("rsocket")`` known to the session ``spark``. Not needed if ``pyspark_rsocket`` is installed."""
    spark.dataSource.register(RSocketDataSource)
