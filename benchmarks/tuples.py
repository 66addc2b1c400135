"""The baseline of the Spark source and sink: a plain Python one that yields tuples, and takes rows one by one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceWriter, InputPartition, WriterCommitMessage
from pyspark.sql.types import Row, StructType

from benchmarks.rows import ROW


class TupleSource(DataSource):
    """Rows of the same size, out of nowhere, and a writer that counts them."""

    @classmethod
    def name(cls) -> str:
        return "tuples"

    def schema(self) -> str:
        return "partition INT, position BIGINT, data BINARY"

    def reader(self, schema: StructType) -> TupleReader:
        return TupleReader(int(self.options["rows"]), int(self.options["partitions"]))

    def writer(self, schema: StructType, overwrite: bool) -> RowWriter:
        return RowWriter()


class TupleReader(DataSourceReader):
    """Yields tuples."""

    def __init__(self, rows: int, partitions: int) -> None:
        self._rows = rows
        self._partitions = partitions

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(self._partitions)]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        for position in range(self._rows):
            yield partition.value, position, ROW


class RowWriter(DataSourceWriter):
    """Looks at each row."""

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        size = 0
        for row in iterator:
            size += len(row.data)
        return WriterCommitMessage()
