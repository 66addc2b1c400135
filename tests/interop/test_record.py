"""``record`` of a foreign peer's stream, and again after the recorder was killed."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from rsocket_trio import open_connection
from rsocket_trio.replay import read_source_payload
from tests.cli.commands import started
from tests.interop.orders import TICKS
from tests.interop.orders_peers import OrdersKind, running
from tests.interop.peers import Kind, TransportName, server_peer

ROWS = 1000


async def recorded(source: str, count: int, route: str) -> list[bytes]:
    """Return so many rows from the first one on, as soon as they are there."""
    async with (
        open_connection(source) as client,
        client.request_stream(json.dumps({"partition": 0, "from": 0}), route=route) as items,
    ):
        return [read_source_payload(await anext(items)).data or b"" for _ in range(count)]


async def test_a_stream_of_a_peer_is_recorded_and_the_file_goes_on(
    kind: Kind, transport: TransportName, tmp_path: Path
) -> None:
    uri = await server_peer(kind, transport)
    words = ("infinite", "--to", "numbers.log", "--listen", "tcp://127.0.0.1:0", "--credit", "100", "--log", "error")
    found: list[int] = []
    for runs in (1, 2):
        async with started("record", uri, *words, cwd=tmp_path) as recorder:
            source = (await recorder.line()).removeprefix("listening ")
            count = ROWS
            while (found := [int(row) for row in await recorded(source, count, "infinite")]).count(0) < runs:
                count += ROWS
            recorder.process.kill()
            await recorder.process.wait()

    # The peer begins at 0 for each request: one run of numbers for each, with no gap in it.
    again = found.index(0, 1)
    assert found == [*range(again), *itertools.islice(itertools.count(), len(found) - again)]


@pytest.mark.parametrize("orders", ["spring"])
async def test_a_stream_of_spring_is_recorded_to_its_end(orders: OrdersKind, tmp_path: Path) -> None:
    uri = (await running(orders)).uris[0]
    words = ("--to", "ticks.log", "--listen", "tcp://127.0.0.1:0", "--credit", "16", "--data-mime", "json")
    async with started("record", uri, "ticks.ACME", *words, cwd=tmp_path) as recorder:
        source = (await recorder.line()).removeprefix("listening ")
        found = [json.loads(row) for row in await recorded(source, TICKS, "ticks.ACME")]
        while "complete" not in (line := await recorder.line("stderr")):
            assert line

    assert f"complete behind {TICKS} items" in line
    assert [(tick["symbol"], tick["number"]) for tick in found] == [("ACME", number) for number in range(TICKS)]
