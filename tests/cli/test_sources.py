"""``sources`` and ``readers``: what they print of a server, and how a reader is forgotten."""

from __future__ import annotations

import json

import pytest

from rsocket_trio import Responder
from rsocket_trio.replay import Log, add_source
from tests.cli.commands import hosting, run


async def test_sources_and_readers_are_shown_by_partition_and_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    responder, log = Responder(), Log(partitions=2)
    await log.open()
    for number in range(12):
        await log.append(b"%d" % number, partition=1)
    await log.trim(1, 3)
    monkeypatch.setattr("rsocket_trio.replay.log.now_us", lambda: 1_700_000_000_000_000)
    await log.acknowledge("billing", {1: 10})
    await log.acknowledge("b", {0: 0, 1: 12})
    add_source(responder, "orders", log)
    add_source(responder, "sensors.a", Log())
    async with hosting(responder) as uri:
        shown = await run("sources", uri)
        some = await run("sources", uri, "--pattern", "sensors.*", "--json")
        none = await run("sources", uri, "--pattern", "prices.*")
        readers = await run("readers", uri, "orders")
        left = await run("readers", uri, "orders", "--forget", "billing", "--json")
        nobody = await run("readers", uri, "orders", "--forget", "billing")

    lines = ["orders     0  0   0", "orders     1  3  12", "sensors.a  0  0   0"]
    assert (shown.code, shown.stdout.splitlines(), shown.stderr) == (0, lines, "")
    assert json.loads(some.stdout) == {"sensors.a": {"partitions": {"0": {"earliest": 0, "latest": 0}}}}
    assert (none.code, none.stdout, none.stderr) == (1, "", "rsocket-trio: the server has no source like 'prices.*'\n")
    lines = [
        "b        0   0  0  2023-11-14 22:13:20",
        "b        1  12  0  2023-11-14 22:13:20",
        "billing  0   -  0  2023-11-14 22:13:20",
        "billing  1  10  2  2023-11-14 22:13:20",
    ]
    assert (readers.code, readers.stdout.splitlines(), readers.stderr) == (0, lines, "")
    reader = {"ends": {"0": 0, "1": 12}, "behind": {"0": 0, "1": 0}, "seen": 1_700_000_000_000_000}
    assert json.loads(left.stdout) == {"b": reader}
    assert (nobody.code, nobody.stdout) == (7, "")
    assert "there is no reader 'billing': nothing was forgotten" in nobody.stderr
