"""Streams and channels between us and each peer, whichever side asks: items, credit, and ends of each half."""

from __future__ import annotations

import json

from rsocket_trio import open_connection
from tests.interop.both_ways import Setting, asking, eventually, told
from tests.interop.peers import Kind, TransportName, pattern, server_peer

SIZES = [300_000, 1, 997, 1_000, 65_536, 300_000]


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


async def test_small_grants_are_kept_to_and_add_up(setting: Setting) -> None:
    async with asking(setting) as asker:
        result = await asker.do("request_stream", route="count", data=b"11", initial_n=1, later=[2, 1, 3, 4], hold=20)
        grants = await told(asker, "credits")

    assert (result["completed"], result["items"], result["surplus"]) == (True, numbers(11), 0)
    assert grants == [1, 2, 1, 3, 4]


async def test_an_error_comes_after_the_items_before_it(setting: Setting) -> None:
    async with asking(setting) as asker:
        result = await asker.do("request_stream", route="fail", data=b"3")

    assert (result["ok"], result["code"], result["error"]) == (False, 0x201, "failed after 3")
    assert result["items"] == numbers(3)


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


async def test_small_grants_are_kept_to_in_both_directions_of_a_channel(setting: Setting) -> None:
    async with asking(setting) as asker:
        result = await asker.do(
            "request_channel", route="echo", items=numbers(10), initial_n=1, later=[2, 3, 4], hold=20
        )
        grants = await told(asker, "credits")

    assert (result["completed"], result["items"], result["surplus"]) == (True, numbers(10), 0)
    assert grants == [1, 2, 3, 4]
    assert result["sent"] == 10 <= result["granted"] <= 14


async def test_the_responder_can_end_its_half_first(setting: Setting) -> None:
    async with asking(setting) as asker:
        result = await asker.do("request_channel", route="half", items=[b"still", b"heard", *numbers(8)])
        heard: list[str] = []

        async def all_was_heard() -> bool:
            heard.extend((await told(asker, "received"))["fnf"])
            return len(heard) == 10

        assert (result["ok"], result["completed"], result["items"]) == (True, True, [])
        assert await eventually(all_was_heard)

    assert [bytes.fromhex(data) for data in heard] == [b"still", b"heard", *numbers(8)]


async def test_the_responder_can_refuse_more_messages(setting: Setting) -> None:
    async with asking(setting) as asker:
        result = await asker.do("request_channel", route="stop", items=numbers(50))

    assert (result["ok"], result["completed"], result["items"]) == (True, True, [b"stopped"])
    assert result["stopped"]
    assert result["sent"] < 50


async def test_an_empty_message_is_a_message(setting: Setting) -> None:
    async with asking(setting) as asker:
        result = await asker.do("request_channel", route="echo", data=b"first", items=[b"", b"three"])

    assert (result["completed"], result["items"]) == (True, [b"first", b"", b"three"])


async def test_large_messages_in_fragments_arrive_whole_both_ways(setting: Setting) -> None:
    async with asking(setting, fragment=1000) as asker:
        result = await asker.do("request_channel", route="echo", items=[{"size": size} for size in SIZES])
        streamed = await asker.do("request_stream", route="sizes", data=b",".join(b"%d" % size for size in SIZES))

    for each in (result, streamed):
        assert (each["ok"], each["completed"]) == (True, True)
        assert each["items"] == [pattern(size) for size in SIZES]
