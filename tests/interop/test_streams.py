"""Streams between us and each peer, whichever side asks: items, credit, ends and cancels."""

from __future__ import annotations

import json

import pytest

from rsocket_trio import open_connection
from rsocket_trio.metadata import COMPOSITE_METADATA, TEXT_PLAIN, Entry, encode_composite, with_route
from tests.interop.both_ways import Setting, asking, one_handler_stops, told
from tests.interop.peers import Kind, TransportName, pattern, server_peer

LARGE = 300_000
ENTRY = encode_composite([Entry(TEXT_PLAIN, b"a word beside the route")])


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


async def test_items_come_in_order_and_end(setting: Setting) -> None:
    async with asking(setting) as asker:
        result = await asker.do("request_stream", route="count", data=b"1000")

    assert (result["ok"], result["completed"]) == (True, True)
    assert result["items"] == numbers(1000)


async def test_an_item_brings_its_metadata(setting: Setting) -> None:
    async with asking(setting) as asker:
        result = await asker.do("request_stream", route="echo", data=b"hi", metadata=ENTRY)

    assert (result["completed"], result["items"]) == (True, [b"hi"])
    assert result["metadata"] == [with_route("echo", ENTRY, COMPOSITE_METADATA)]


async def test_small_grants_are_kept_to_and_add_up(setting: Setting) -> None:
    async with asking(setting) as asker:
        result = await asker.do("request_stream", route="count", data=b"11", initial_n=1, later=[2, 1, 3, 4], hold=20)
        grants = await told(asker, "credits")

    assert (result["completed"], result["items"], result["surplus"]) == (True, numbers(11), 0)
    assert grants == [1, 2, 1, 3, 4]


async def test_no_item_comes_without_credit(setting: Setting) -> None:
    async with asking(setting) as asker, one_handler_stops(asker):
        result = await asker.do("request_stream", route="infinite", initial_n=3, later=[2], hold=100)

    assert (result["cancelled"], result["items"], result["surplus"]) == (True, numbers(5), 0)


async def test_a_cancel_in_mid_stream_stops_the_handler(setting: Setting) -> None:
    async with asking(setting) as asker, one_handler_stops(asker):
        result = await asker.do("request_stream", route="infinite", take=100)

        assert (result["cancelled"], result["items"]) == (True, numbers(100))


async def test_an_error_comes_after_the_items_before_it(setting: Setting) -> None:
    async with asking(setting) as asker:
        result = await asker.do("request_stream", route="fail", data=b"3")

    assert (result["ok"], result["code"], result["error"]) == (False, 0x201, "failed after 3")
    assert result["items"] == numbers(3)


async def test_a_stream_can_fail_before_its_first_item(setting: Setting) -> None:
    async with asking(setting) as asker:
        result = await asker.do("request_stream", route="error", data=b"not today")

    assert (result["ok"], result["code"], result["error"], result["items"]) == (False, 0x201, "not today", [])


@pytest.mark.parametrize("fragment", [None, 1000], ids=["default", "1kB"])
async def test_large_items_arrive_whole(setting: Setting, fragment: int | None) -> None:
    sizes = [LARGE, 1, 1_000, 997, 65_536, LARGE]

    async with asking(setting, fragment=fragment) as asker:
        result = await asker.do("request_stream", route="sizes", data=b",".join(b"%d" % size for size in sizes))

    assert (result["ok"], result["completed"]) == (True, True)
    assert [len(item) for item in result["items"]] == sizes
    assert result["items"] == [pattern(size) for size in sizes]


async def test_an_empty_item_is_an_item(setting: Setting) -> None:
    async with asking(setting) as asker:
        result = await asker.do("request_stream", route="sizes", data=b"3,0,2")

    assert (result["completed"], result["items"]) == (True, [pattern(3), b"", pattern(2)])


async def test_credit_is_topped_up_as_items_are_read(kind: Kind, transport: TransportName) -> None:
    async with open_connection(await server_peer(kind, transport)) as connection:
        async with connection.request_stream("100", route="count", initial_request_n=16) as items:
            assert [item.data async for item in items] == numbers(100)
        grants = json.loads((await connection.request_response(route="credits")).data)

    # Half of the credit at a time; two halves that are due at once go out as one.
    assert grants[0] == 16
    assert set(grants[1:]) <= {8, 16}
    assert sum(grants) >= 100
