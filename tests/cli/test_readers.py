"""``readers``: what it prints of a route's named readers, how it forgets one, and how it ends without them."""

from __future__ import annotations

import json

import pytest

from rsocket_trio import Responder
from rsocket_trio.replay import Log, add_source
from tests.cli.commands import run
from tests.cli.test_routes import serving


async def test_readers_are_shown_by_partition_and_one_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    responder, log = Responder(), Log(partitions=2)
    await log.open()
    for number in range(12):
        await log.append(b"%d" % number, partition=1)
    monkeypatch.setattr("rsocket_trio.replay.log.now_us", lambda: 1_700_000_000_000_000)
    await log.acknowledge("billing", {1: 10})
    await log.acknowledge("b", {0: 0, 1: 12})
    add_source(responder, "orders", log)
    async with serving(responder) as uri:
        shown = await run("readers", uri, "orders")
        left = await run("readers", uri, "orders", "--forget", "billing", "--json")
        none = await run("readers", uri, "orders", "--forget", "billing")

    lines = [
        "b        0   0  0  2023-11-14 22:13:20",
        "b        1  12  0  2023-11-14 22:13:20",
        "billing  0   -  0  2023-11-14 22:13:20",
        "billing  1  10  2  2023-11-14 22:13:20",
    ]
    assert (shown.code, shown.stdout.splitlines(), shown.stderr) == (0, lines, "")
    reader = {"ends": {"0": 0, "1": 12}, "behind": {"0": 0, "1": 0}, "seen": 1_700_000_000_000_000}
    assert json.loads(left.stdout) == {"b": reader}
    assert (none.code, none.stdout) == (7, "")
    assert "there is no reader 'billing': nothing was forgotten" in none.stderr


async def test_a_route_without_readers_is_code_5() -> None:
    responder = Responder()
    responder.request_response("orders")(lambda request: b"")
    async with serving(responder) as uri:
        shown = await run("readers", uri, "orders")

    said = "Rejected: 'orders' is no source of this server, or its version is older than named readers\n"
    assert (shown.code, shown.stdout, shown.stderr) == (5, "", said)


@pytest.mark.parametrize(
    "answer", [b"hello", b"[]", b'{"a": 1}', b'{"a": {"ends": {}, "behind": {"x": 1}, "seen": 1}}']
)
async def test_an_answer_that_describes_no_readers_is_code_1(answer: bytes) -> None:
    responder = Responder()
    responder.request_response("orders.readers")(lambda request: answer)
    async with serving(responder) as uri:
        shown = await run("readers", uri, "orders")

    assert (shown.code, shown.stdout) == (1, "")
    assert "the server's answer on 'orders.readers' describes no readers" in shown.stderr
