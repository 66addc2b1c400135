"""Packs: many rows in one element, as an Arrow IPC stream, and refused whole where they are torn."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from rsocket_trio import Invalid, Payload, RemoteProtocolError, Responder
from rsocket_trio.replay import Element, Ledger, Log, Pack, Record, ReplayableLog, add_sink, add_source
from rsocket_trio.replay.arrow_packs import (
    batch_of,
    checked,
    elements_of,
    pack_of,
    packed,
    packs_of,
    placed,
    rows_of,
)
from rsocket_trio.replay.elements import PACK_ROWS, RecordEntry, read_element, read_source_payload
from rsocket_trio.testing import connected_pair
from tests.each_row import each_row
from tests.replay import stored
from tests.replay.stored import data_of

PAIR = [Element(b"hello", key=b"k"), Element(None, headers=[("n", b"1"), ("n", None)])]


def stream(columns: dict[str, Any], *, batches: int = 1, **options: Any) -> bytes:
    """Return columns as an Arrow IPC stream."""
    batch = pa.record_batch(columns)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        for _ in range(batches):
            writer.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


def data(*values: bytes | None) -> pa.Array:
    return pa.array(values, pa.binary())


def int32(*values: int | None) -> pa.Array:
    return pa.array(values, pa.int32())


def int64(*values: int | None) -> pa.Array:
    return pa.array(values, pa.int64())


# Rows to packs and back

contents = st.none() | st.binary(max_size=5)
elements = st.builds(
    Element,
    st.none() | st.binary(max_size=20),
    contents,
    st.integers(1, 5),
    contents,
    st.none() | st.lists(st.tuples(st.text(max_size=4), contents), max_size=3),
)


@given(st.lists(elements, min_size=1, max_size=20), st.integers(0, 30), st.integers(0, 30))
def test_any_rows_come_back_whole_and_from_any_place(rows: list[Element], start: int, length: int) -> None:
    pack = next(packs_of(rows))

    assert list(elements_of(pack)) == rows
    assert checked(pack) == [pack]
    whole = list(rows_of(pack))
    found = list(rows_of(pack, start, start + length))
    assert found == [one for one in whole if one.position < start + length and one.end > start]


def test_columns_that_are_null_in_all_rows_are_left_out_but_data() -> None:
    [batch] = pa.ipc.open_stream(next(packs_of([Element(None)])).data)
    assert batch.to_pydict() == {"data": [None]}
    [batch] = pa.ipc.open_stream(next(packs_of(PAIR)).data)
    assert batch.to_pydict() == {
        "data": [b"hello", None],
        "key": [b"k", None],
        "headers": [None, [{"name": "n", "value": b"1"}, {"name": "n", "value": None}]],
    }


def test_times_of_records_are_a_column() -> None:
    [pack] = packed([Record(number, b"x", timestamp=time) for number, time in enumerate((5, 6, None))], 0)
    assert (pack.timestamp, [one.timestamp for one in rows_of(pack)]) == (None, [5, 6, None])
    assert placed(pack).column("timestamp").cast(pa.int64()).to_pylist() == [5, 6, None]


@given(st.lists(st.integers(1, 3), min_size=1, max_size=10), st.integers(0, 10))
def test_gaps_within_a_pack_and_behind_it_are_told(gaps: list[int], behind: int) -> None:
    position, rows = 100, []
    for gap in gaps:
        position += gap
        rows.append(Record(position, b"%d" % position))
        position += 1
    [pack] = packed([*rows, Record(position + behind, b"", count=0)], 100)

    assert (pack.position, pack.end) == (100, position + behind)
    found = list(rows_of(pack, 100))
    assert [one for one in found if one.count] == rows
    assert found[-1].end == position + behind
    assert placed(pack).column("position").to_pylist() == [one.position for one in rows]


def test_a_pack_without_data_has_no_row_at_its_positions() -> None:
    [pack] = packed([Record(105, b"", count=0)], 100)
    assert pack == Pack(b"", 5, 100)
    assert (list(rows_of(pack, 100)), list(elements_of(pack))) == ([Record(105, b"", count=0)], [])


def test_single_rows_are_joined_and_packs_stay_as_they_are() -> None:
    pack = Pack(next(packs_of([Element(b"%d" % n) for n in range(3)])).data, 3, 5)

    found = list(packed([Record(3, b"a"), Record(4, b"b"), pack, Record(8, b"last")], 3))
    assert found[1] is pack
    assert [(one.position, one.end) for one in found] == [(3, 5), (5, 8), (8, 9)]
    assert [one.data for one in rows_of(found[0])] == [b"a", b"b"]
    assert [(one.position, one.data) for one in rows_of(pack, 6, 8)] == [(6, b"1"), (7, b"2")]


def test_a_large_pack_is_divided_and_all_rows_are_there() -> None:
    rows = [Element(b"%d" % number, count=number % 3 + 1) for number in range(3 * PACK_ROWS)]
    parts = checked(pack_of(batch_of(rows)))

    assert len(parts) >= 3
    assert sum(part.count for part in parts) == sum(row.count for row in rows)
    assert [row for part in parts for row in elements_of(part)] == rows


def test_many_rows_are_checked_by_arrow_and_not_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    count = 2_000_000
    counts = pa.concat_arrays([int32(*[1] * 1000)] * (count // 1000))
    rows = pa.concat_arrays([data(*[b"x"] * 1000)] * (count // 1000))

    def refuse(*_: object) -> None:
        raise AssertionError("a row was looked at by Python")

    for name in ("Record", "Element"):
        monkeypatch.setattr(f"rsocket_trio.replay.arrow_packs.{name}", refuse)
    pack = Pack(stream({"data": rows, "count": counts}), count)
    assert sum([part.count for part in checked(pack)]) == count
    assert placed(pack).num_rows == count


# What a peer may send

BAD = [
    ({"data": data(b"a"), "text": ["a"]}, 1, "a pack in arrow/1 with the column 'text'"),
    ({"data": ["a"]}, 1, "column 'data' of a pack in arrow/1 is string"),
    ({"data": data(b"a"), "headers": pa.array([[("a", b"1")]], pa.map_(pa.string(), pa.binary()))}, 1, "'headers' of"),
    ({"count": int32(1)}, 1, "it has one, with a column 'data'"),
    ({"data": data()}, 1, "with 0 record batches|a pack of 0 rows"),
    ({"data": data(b"a"), "count": int32(0)}, 1, "less than 1"),
    ({"data": data(b"a", b"b"), "count": int32(1, None)}, 2, "without a number of positions"),
    ({"data": data(b"a"), "count": int32(2)}, 1, "a pack of 2 rows, its metadata says 1"),
    ({"data": data(b"a", b"b"), "position": int64(0, 0)}, 2, "its rows are not in order, or overlap"),
    ({"data": data(b"a", b"b"), "position": int64(0, 1), "count": int32(2, 1)}, 3, "not in order, or overlap"),
    ({"data": data(b"a", b"b"), "position": int64(5, None)}, 2, "it has rows without a position"),
    ({"data": data(b"a", b"b"), "position": int64(0, 9)}, 2, "it spans 2 positions, .* from 0 to 9"),
    ({"data": data(b"a"), "key": data(bytes(2**24))}, 1, "with metadata, keys and headers of 167772.. bytes"),
]


@each_row(("columns", "count", "problem"), BAD, ids=range(len(BAD)))
def test_a_pack_of_other_columns_or_rows_is_refused(columns: dict[str, Any], count: int, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        checked(Pack(stream(columns), count))


def test_positions_and_times_of_a_writer_are_the_logs_to_give() -> None:
    [pack] = checked(Pack(stream({"position": int64(7, 9), "data": data(b"a", b"b")}), 3, 7))
    assert list(rows_of(pack)) == [Record(0, b"a"), Record(1, b"b")]
    assert [batch.schema.names for batch in pa.ipc.open_stream(pack.data)] == [["data"]]


def test_headers_may_be_declared_with_names_that_may_be_null_but_none_is() -> None:
    loose = pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))
    strict = pa.struct([pa.field("name", pa.string(), nullable=False), ("value", pa.binary())])
    for kind in (loose, pa.list_(strict), pa.list_(pa.field("one", strict, nullable=False))):
        named = pa.array([[{"name": "a", "value": None}]], kind)
        [row] = elements_of(*checked(Pack(stream({"data": data(b"x"), "headers": named}), 1)))
        assert row.headers == [("a", None)]
    nameless = pa.array([[{"name": None, "value": b"1"}]], loose)
    with pytest.raises(ValueError, match=r"is not in arrow/1|has no name"):
        checked(Pack(stream({"data": data(b"x"), "headers": nameless}), 1))


def test_a_stream_has_one_batch_with_rows() -> None:
    with pytest.raises(ValueError, match="with 2 record batches"):
        checked(Pack(stream({"data": data(b"a")}, batches=2), 2))
    with pytest.raises(ValueError, match="a pack of 5 bytes is not in arrow/1"):
        checked(Pack(b"hello", 1))


def test_a_compressed_pack_is_refused_before_it_is_decompressed() -> None:
    for size in (10, 65 * 2**20):
        small = stream({"data": data(bytes(size))}, compression="zstd")
        assert len(small) < 2**20
        with pytest.raises(ValueError, match="that is compressed: a small one could fill the memory"):
            checked(Pack(small, 1))


def test_a_pack_that_is_cut_or_changed_is_refused_or_holds_rows() -> None:
    whole = next(packs_of([Element(b"%d" % number, key=b"k") for number in range(50)])).data
    refused = 0
    for place in range(0, len(whole), 7):
        for torn in (whole[:place], whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :]):
            try:
                [pack] = checked(Pack(torn, 50))
            except ValueError:
                refused += 1
            else:
                assert len(list(elements_of(pack))) == 50
    assert refused > len(whole) // 7


@each_row(
    ("pack", "problem"),
    [
        (Pack(stream({"data": data(b"a", b"b")}), 3, 5), "a pack of 2 rows, its metadata says 3"),
        (Pack(stream({"data": data(b"a", b"b"), "position": int64(5, 9)}), 2, 5), "it spans 2 positions"),
        (Pack(stream({"data": data(b"a"), "position": int64(4)}), 1, 5), "are those from 4 to 4"),
        (Pack(stream({"data": data(b"a", b"b"), "position": int64(6, 5)}), 2, 5), "not in order, or overlap"),
        (Pack(stream({"data": data(b"a", b"b")}), 2, 2**63 - 1), "overflow"),
        (Pack(b"torn", 1), "is not in arrow/1"),
    ],
)
def test_a_pack_of_a_server_that_is_elsewhere_than_it_says_is_refused(pack: Pack, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        placed(pack)


def test_rows_of_a_pack_are_placed() -> None:
    batch = placed(Pack(stream({"data": data(b"a", None), "count": int32(2, 1)}), 3, 5, 7))
    assert batch.select(["position", "count", "key"]).to_pydict() == {
        "position": [5, 7],
        "count": [2, 1],
        "key": [None, None],
    }
    assert batch.column("timestamp").cast(pa.int64()).to_pylist() == [7, 7]


# Logs and routes


@pytest.mark.parametrize("kind", stored.KINDS)
async def test_rows_that_were_appended_together_are_read_from_any_place(kind: str, tmp_path: Any) -> None:
    async with stored.new_log(kind, tmp_path) as log:
        count = 2 * PACK_ROWS + 10
        await log.append_all({0: [Element(b"%d" % n) for n in range(count)]})
        for start in (0, 1, PACK_ROWS - 1, PACK_ROWS, PACK_ROWS + 1, count - 1):
            record = next(iter(await log.read_some(0, start, start + 1)))
            assert (record.position, record.data) == (start, b"%d" % start)
            pack = next(iter(await log.read_packs(0, start, start + 1)))
            assert [one.data for one in rows_of(pack, start, start + 1)] == [b"%d" % start]


async def asked(log: ReplayableLog, request: str) -> list[Payload]:
    responder = Responder()
    add_source(responder, "rows", log)
    async with (
        connected_pair(responder) as (client, _),
        client.request_stream(request.encode(), route="rows", initial_request_n=100) as items,
    ):
        return [item async for item in items]


async def test_a_reader_that_asks_for_arrow_gets_packs() -> None:
    async with Log() as log:
        await log.append_all({0: [Element(b"%d" % n if n else None) for n in range(10)]})
        [item] = await asked(log, '{"partition":0,"from":0,"to":10,"pack":["zstd/9","arrow/1"]}')
        entry, _ = read_element(item)
        assert (entry.position, entry.count, entry.pack) == (0, 10, "arrow/1")
        assert entry.timestamp is not None
        [batch] = pa.ipc.open_stream(item.data)
        assert batch.to_pydict() == {"data": [None, *(b"%d" % n for n in range(1, 10))]}
        with pytest.raises(RemoteProtocolError, match="the element at position 0 is a pack"):
            read_source_payload(item)


@each_row("asking", ["", ',"pack":[]', ',"pack":["zstd/9","plain/1"]', ',"pack":["arrow/1"]'])
async def test_others_get_rows_and_so_do_all_without_arrow(asking: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if "arrow" in asking:
        monkeypatch.setattr("rsocket_trio.replay.elements.has_arrow", lambda: False)
    async with Log() as log:
        await log.append_all({0: [Element(b"0"), Element(None), Element(b"2")]})
        found = await asked(log, f'{{"partition":0,"from":1,"to":3{asking}}}')
        assert [read_source_payload(item) for item in found] == [Record(1, None), Record(2, b"2")]


async def test_rows_at_the_end_of_a_log_share_a_pack(autojump_clock: trio.testing.MockClock) -> None:
    responder = Responder()
    async with Log() as log, connected_pair(responder) as (client, _):
        add_source(responder, "rows", log)
        request = b'{"partition":0,"from":0,"pack":["arrow/1"]}'
        async with client.request_stream(request, route="rows", initial_request_n=100) as items:
            await trio.testing.wait_all_tasks_blocked()
            for number in range(5):
                await log.append(b"%d" % number)
                await trio.sleep(0.0001)
            item = await anext(items)
            assert read_element(item)[0].count == 5


def element(content: bytes, form: str = "arrow/1", rows: int = 2) -> Payload:
    return Payload(content, RecordEntry(count=rows, pack=form).encoded())


async def test_a_stage_takes_packs_and_rows_between_them() -> None:
    responder, ledger = Responder(), Ledger()
    add_sink(responder, "rows", ledger)
    async with ledger, connected_pair(responder) as (client, _):
        assert (await client.request_response(route="rows.pack")).text == '{"pack":["arrow/1"]}'
        opening = b'{"sink":"s","attempt":"a","partition":0}'
        async with client.request_channel(opening, route="rows.stage") as channel:
            await channel.send(element(next(packs_of(PAIR)).data))
            await channel.send(b"single")
            await channel.send(element(next(packs_of(PAIR)).data))
            await channel.send_eof()
            assert [item.text async for item in channel] == ['{"rows":5,"elements":3}']
        await ledger.commit("s", 0, {"a": 5})
        assert [one.element for one in await stored.rows_of(ledger.log)] == [*PAIR, Element(b"single"), *PAIR]


@each_row(
    ("payload", "problem"),
    [
        (element(next(packs_of(PAIR)).data[:-9]), "is not in arrow/1|0 record batches"),
        (element(next(packs_of(PAIR)).data, rows=3), "a pack of 2 rows, its metadata says 3"),
        (element(next(packs_of(PAIR)).data, "plain/1"), "a pack in the format 'plain/1': known is arrow/1"),
    ],
)
async def test_a_bad_pack_at_a_sink_is_invalid_and_nothing_is_written(payload: Payload, problem: str) -> None:
    responder, ledger = Responder(), Ledger()
    add_sink(responder, "rows", ledger)
    async with ledger, connected_pair(responder) as (client, _):
        with pytest.raises(Invalid, match=problem):
            await client.request_response(payload, route="rows")
        await client.request_response(b"fine", route="rows")
        assert await data_of(ledger.log) == [b"fine"]


async def test_a_sink_without_arrow_takes_no_packs_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rsocket_trio.replay.elements.has_arrow", lambda: False)
    responder, ledger = Responder(), Ledger()
    add_sink(responder, "rows", ledger)
    async with ledger, connected_pair(responder) as (client, _):
        assert (await client.request_response(route="rows.pack")).text == '{"pack":[]}'
        with pytest.raises(Invalid, match="known is none, without pyarrow"):
            await client.request_response(element(b""), route="rows")
