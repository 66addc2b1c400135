"""The twelve cases that every pair of gRPC implementations has to pass, in RSocket's words.

Each is played with both kinds of peers, over both transports, and with either side asking. What a peer itself can't
do is in ``conftest.py``.
"""

from __future__ import annotations

import json

import pytest

from tests.interop.both_ways import Setting, asking, one_handler_stops
from tests.interop.peers import pattern

REQUESTS = (27_182, 8, 1_828, 45_904)
REPLIES = (31_415, 9, 2_653, 58_979)
DEADLINE = 1
"""Milliseconds."""


async def test_empty_unary(setting: Setting) -> None:
    async with asking(setting) as asker:
        reply = await asker.do("request_response")

    assert (reply["ok"], reply["data"] or b"") == (True, b"")


async def test_large_unary(setting: Setting) -> None:
    async with asking(setting) as asker:
        reply = await asker.do("request_response", route="large", size=271_828)

    assert reply["ok"], reply
    assert reply["data"] == pattern(314_159)


async def test_client_streaming(setting: Setting) -> None:
    async with asking(setting) as asker:
        result = await asker.do("request_channel", route="sum", items=[{"size": size} for size in REQUESTS])

    assert (result["ok"], result["completed"], result["items"]) == (True, True, [b"74922"])


async def test_server_streaming(setting: Setting) -> None:
    async with asking(setting) as asker:
        result = await asker.do("request_stream", route="sizes", data=",".join(map(str, REPLIES)).encode())

    assert (result["ok"], result["completed"]) == (True, True)
    assert result["items"] == [pattern(size) for size in REPLIES]


async def test_ping_pong(setting: Setting) -> None:
    # Each message asks for a size, and has itself the size of its own case.
    messages = [(b"%d\0" % reply).ljust(request, b"\0") for request, reply in zip(REQUESTS, REPLIES, strict=True)]

    async with asking(setting) as asker:
        result = await asker.do("request_channel", route="pingpong", items=messages, pingpong=True)

    assert (result["ok"], result["completed"], result["sent"]) == (True, True, 4)
    assert result["items"] == [pattern(size) for size in REPLIES]


async def test_empty_stream(setting: Setting) -> None:
    async with asking(setting) as asker:
        result = await asker.do("request_channel", route="echo")

    assert (result["ok"], result["completed"], result["items"]) == (True, True, [])


async def test_cancel_after_begin(setting: Setting) -> None:
    async with asking(setting) as asker, one_handler_stops(asker):
        result = await asker.do("request_stream", route="silent", cancel_after=50)

        assert (result["cancelled"], result["completed"], result["items"]) == (True, False, [])


async def test_cancel_after_first_response(setting: Setting) -> None:
    async with asking(setting) as asker, one_handler_stops(asker):
        result = await asker.do("request_channel", route="echo", items=[b"one", b"two"], take=1, complete=False)

        assert (result["cancelled"], result["completed"], result["items"]) == (True, False, [b"one"])


async def test_timeout_on_sleeping_server(setting: Setting) -> None:
    async with asking(setting) as asker:
        result = await asker.do("request_response", route="sleep", data=b"60000", cancel_after=DEADLINE)
        after = await asker.do("request_response", route="echo", data=b"still there?")

    assert result["cancelled"]
    assert after["data"] == b"still there?"


@pytest.mark.parametrize(
    "text", ["test status message", "\t\ntest with whitespace\r\nand Unicode BMP ☺ and non-BMP 😈\t\n"]
)
async def test_status_code_and_message(setting: Setting, text: str) -> None:
    async with asking(setting) as asker:
        answer = await asker.do("request_response", route="error", data=text.encode())
        channel = await asker.do("request_channel", route="fail", items=[text.encode()], complete=False)

    for result in (answer, channel):
        assert (result["ok"], result["code"], result["error"]) == (False, 0x201, text)


@pytest.mark.parametrize("interaction", ["request_response", "request_stream", "request_channel"])
async def test_unimplemented_method(setting: Setting, interaction: str) -> None:
    async with asking(setting) as asker:
        result = await asker.do(interaction, route="nowhere.to.be.found", data=b"hi")

    assert (result["ok"], result["code"]) == (False, 0x202)
    assert "nowhere.to.be.found" in result["error"]


async def test_a_thousand_requests_at_once(setting: Setting) -> None:
    async with asking(setting) as asker:
        result = await asker.do("many", count=1000, route="check", size=2_718)

    assert (result["ok"], result["answers"], result["errors"]) == (True, 1000, [])
    (answer,) = result["different"]
    assert json.loads(answer) == {"size": 2_718, "same": True}
