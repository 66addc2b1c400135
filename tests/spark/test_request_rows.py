"""Rows become requests: which columns are taken, what goes into data and metadata, and how much at a time."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from rsocket_trio import Payload
from rsocket_trio.metadata import ROUTING, decode_composite, decode_route
from rsocket_trio.replay.arrow_packs import HEADERS_TYPE as RAW_HEADERS
from rsocket_trio.replay.arrow_packs import elements_of
from rsocket_trio.replay.elements import Pack, read_element, read_sink_payload
from rsocket_trio.spark.errors import RowError, SchemaMismatchError
from rsocket_trio.spark.request_rows import (
    HEADERS_WANTED,
    PIECE_BYTES,
    PIECE_ROWS,
    Encoder,
    sink_columns,
)
from tests.spark.deliveries import ORIGIN, encoder, options, write_of
from tests.spark.sinks import batch, numbers


def columns(**types: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in types.items()])


HEADERS = ArrayType(columns(name=StringType(), value=BinaryType()))
EVERYTHING = columns(data=BinaryType(), metadata=BinaryType(), key=StringType(), route=StringType())


@pytest.mark.parametrize(
    ("schema", "given", "problem"),
    [
        (columns(key=BinaryType()), {}, r"column 'data' \(BINARY or STRING\) is missing"),
        (columns(data=IntegerType()), {}, "column 'data' is INT, wanted is BINARY or STRING"),
        (
            columns(data=BinaryType(), price=LongType()),
            {},
            "'price' is none of data, metadata, key, headers, route",
        ),
        (
            columns(data=BinaryType(), headers=MapType(StringType(), LongType())),
            {},
            f"'headers' is MAP<STRING,BIGINT>, wanted is {HEADERS_WANTED}",
        ),
        (columns(data=BinaryType(), Data=BinaryType()), {}, "column 'Data' comes twice"),
        (EVERYTHING, {"delivery": "exactlyOnce"}, "column 'route' needs a request for each row"),
    ],
)
def test_a_column_that_will_not_do_is_named(schema: StructType, given: dict[str, str], problem: str) -> None:
    with pytest.raises(SchemaMismatchError, match=problem):
        sink_columns(schema, options(**given))


def requests(made: Encoder, rows: pa.RecordBatch) -> list[Payload]:
    return [payload for piece in made.pieces(rows) for payload in piece.payloads]


def full(rows: list[dict[str, object]]) -> pa.RecordBatch:
    types = {"data": pa.binary(), "metadata": pa.binary(), "key": pa.string(), "route": pa.string()}
    return pa.RecordBatch.from_pylist(rows, schema=pa.schema(list(types.items())))


def test_a_row_is_a_request_with_its_data_and_origin() -> None:
    made = encoder(options())
    found = requests(made, batch(numbers(3))) + requests(made, batch(numbers(2, 3)))

    assert [payload.data for payload in found] == numbers(5)
    assert [write_of(payload)["seq"] for payload in found] == [0, 1, 2, 3, 4]
    assert write_of(found[0]) | {"seq": 0} == {
        "sink": "sink",
        "query": "q",
        "batch": 7,
        "partition": 3,
        "attempt": ORIGIN.attempt,
        "seq": 0,
    }
    for payload in found:
        assert payload.metadata is not None
        [routing, _] = decode_composite(payload.metadata)
        assert (routing.mime, decode_route(routing.content)) == (ROUTING, ["orders"])


def test_key_metadata_and_route_go_along() -> None:
    made = encoder(options(), EVERYTHING)
    rows = full([{"data": b"1", "metadata": b"m", "key": "k", "route": "other"}, {"data": b"2"}])
    first, second = requests(made, rows)

    for payload, route, wanted in ((first, "other", (b"k", b"m")), (second, "orders", (None, None))):
        entry, _ = read_element(payload)
        assert (entry.key, entry.metadata) == wanted
        entries = {entry.mime: entry.content for entry in decode_composite(payload.metadata or b"")}
        assert decode_route(entries[ROUTING]) == [route]
    assert [write_of(payload)["seq"] for payload in (first, second)] == [0, 1]


def headers_in(made: Encoder, rows: pa.RecordBatch) -> list[object]:
    elements = [read_sink_payload(payload)[1][0] for payload in requests(made, rows)]
    return [one.headers for each in elements for one in (elements_of(each) if isinstance(each, Pack) else [each])]


@pytest.mark.parametrize("packs", [True, False])
def test_headers_go_along_in_order_and_with_doubles(packs: bool) -> None:
    wanted = columns(data=BinaryType(), headers=HEADERS)
    headers = [[("b", b"1"), ("a", None), ("b", b"2")], None, []]
    rows = pa.RecordBatch.from_arrays(
        [pa.array([b"1", b"2", b"3"]), pa.array(headers, RAW_HEADERS)], names=["data", "headers"]
    )
    made = encoder(options(delivery="exactlyOnce"), wanted, packs=packs)

    assert headers_in(made, rows) == headers


@pytest.mark.parametrize(
    ("headers", "problem"),
    [
        ([None], "column 'headers' has a header without a name"),
        ([(None, b"x")], "column 'headers' has a header without a name"),
        ([("a", bytes(2**24))], "metadata, key and headers of 16777225 bytes: the limit is"),
    ],
    ids=["null", "no name", "content"],
)
@pytest.mark.parametrize("packs", [True, False])
def test_headers_that_can_not_be_sent_are_named(packs: bool, headers: list[object], problem: str) -> None:
    wanted = columns(data=BinaryType(), headers=HEADERS)
    rows = pa.RecordBatch.from_arrays(
        [pa.array([b"1", b"2"]), pa.array([None, headers], RAW_HEADERS)], names=["data", "headers"]
    )
    made = encoder(options(delivery="exactlyOnce"), wanted, packs=packs)

    with pytest.raises(RowError, match=f"row 2 of the task can't be sent: {problem}"):
        requests(made, rows)


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"data": None}, "row 2 of the task can't be sent: column 'data' is null"),
        ({"data": b"x", "route": "r" * 256}, "column 'route': route of 256 bytes, limit 255"),
        (
            {"data": b"x", "metadata": bytes(1 << 24)},
            "metadata, key and headers of 16777216 bytes: the limit is 16773120",
        ),
    ],
    ids=["no data", "long route", "long metadata"],
)
def test_a_row_that_cant_be_sent_is_an_error_or_is_skipped(row: dict[str, object], problem: str) -> None:
    rows = full([{"data": b"1"}, row, {"data": b"3"}])
    with pytest.raises(RowError, match=f"{problem}.*errorPolicy=skip"):
        requests(encoder(options(), EVERYTHING), rows)

    made = encoder(options(errorPolicy="skip"), EVERYTHING)
    assert [payload.data for payload in requests(made, rows)] == [b"1", b"3"]
    assert (made.rows, made.skipped) == (2, 1)
    assert problem in (made.problem or "")


@pytest.mark.parametrize("size", [1, 1000, 200_000, 3 * 2**20])
def test_what_is_handed_on_at_a_time_is_bounded(size: int) -> None:
    rows = batch([bytes(size)] * max(min(5000, 2**24 // size), 3))
    found = list(encoder(options(delivery="exactlyOnce")).pieces(rows))

    assert sum(piece.rows for piece in found) == rows.num_rows
    for piece in found:
        assert len(piece.payloads) <= PIECE_ROWS
        assert len(piece.payloads) == 1 or sum(payload.size for payload in piece.payloads) <= PIECE_BYTES


@pytest.mark.parametrize(("size", "expected"), [(5, [10]), (900_000, [4, 4, 2])])
def test_an_arrow_payload_has_the_rows_of_a_batch_or_4_mebibytes_of_them(size: int, expected: list[int]) -> None:
    rows = pa.RecordBatch.from_pylist([{"id": number, "name": "n" * size} for number in range(10)])
    made = encoder(options(payload="arrow"), columns(id=LongType()))
    found = requests(made, rows)

    tables = [pa.ipc.open_stream(payload.data).read_all() for payload in found]
    assert [table.num_rows for table in tables] == expected
    assert pa.concat_tables(tables).to_pylist() == rows.to_pylist()
    assert [read_sink_payload(payload)[1][0].count for payload in found] == expected
    assert made.rows == 10
