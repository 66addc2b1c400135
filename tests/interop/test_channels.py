"""Channels between us and each peer, whichever side asks: two halves, each with its own credit and its own end."""

from __future__ import annotations

import pytest

from tests.interop.both_ways import Setting, asking, eventually, one_handler_stops, told
from tests.interop.peers import pattern

LARGE = 300_000


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


async def test_every_message_comes_back_in_order(setting: Setting) -> None:
    async with asking(setting) as asker:
        result = await asker.do("request_channel", route="echo", items=numbers(100))

    assert (result["ok"], result["completed"]) == (True, True)
    assert (result["items"], result["sent"]) == (numbers(100), 100)


async def test_the_payload_that_opens_a_channel_arrives(setting: Setting) -> None:
    async with asking(setting) as asker:
        result = await asker.do("request_channel", route="echo", data=b"first", items=[b"second"])

    assert (result["completed"], result["items"]) == (True, [b"first", b"second"])


async def test_small_grants_are_kept_to_in_both_directions(setting: Setting) -> None:
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


async def test_the_requester_can_end_its_half_first(setting: Setting) -> None:
    async with asking(setting) as asker:
        result = await asker.do("request_channel", route="sum", items=[{"size": size} for size in range(1, 9)])

    assert (result["completed"], result["items"]) == (True, [b"36"])


async def test_an_empty_message_is_a_message(setting: Setting) -> None:
    async with asking(setting) as asker:
        result = await asker.do("request_channel", route="echo", items=[b"one", b"", b"three"])

    assert (result["completed"], result["items"]) == (True, [b"one", b"", b"three"])


async def test_a_channel_of_answers_only(setting: Setting) -> None:
    async with asking(setting) as asker:
        result = await asker.do("request_channel", route="count", data=b"20")

    assert (result["completed"], result["items"]) == (True, numbers(20))


async def test_the_responder_can_refuse_more_messages(setting: Setting) -> None:
    async with asking(setting) as asker:
        result = await asker.do("request_channel", route="stop", items=numbers(50))

    assert (result["ok"], result["completed"], result["items"]) == (True, True, [b"stopped"])
    assert result["stopped"]
    assert result["sent"] < 50


async def test_an_error_ends_both_halves(setting: Setting) -> None:
    async with asking(setting) as asker:
        result = await asker.do("request_channel", route="fail", items=[b"no such luck"], complete=False)

    assert (result["ok"], result["code"], result["error"]) == (False, 0x201, "no such luck")


async def test_a_cancel_stops_the_handler(setting: Setting) -> None:
    async with asking(setting) as asker, one_handler_stops(asker):
        result = await asker.do("request_channel", route="echo", items=numbers(10), take=5, complete=False)

        assert (result["cancelled"], result["items"]) == (True, numbers(5))


@pytest.mark.parametrize("fragment", [None, 1000], ids=["default", "1kB"])
async def test_large_messages_arrive_whole_both_ways(setting: Setting, fragment: int | None) -> None:
    sizes = [LARGE, 1, 997, 1_000, 65_536, LARGE]

    async with asking(setting, fragment=fragment) as asker:
        result = await asker.do("request_channel", route="echo", items=[{"size": size} for size in sizes])

    assert (result["ok"], result["completed"]) == (True, True)
    assert [len(item) for item in result["items"]] == sizes
    assert result["items"] == [pattern(size) for size in sizes]
