"""A server that can be killed: its ledger is in a file, its rows are told on the route ``dump``.

python -m tests.spark.kills.server '{"directory": "...", "uri": "tcp://127.0.0.1:0", ...}'

It prints a line for what a test waits for: ``listening URI``, ``took N`` once so many elements came, ``promoted B``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import trio

from rsocket_trio import Responder, serve
from rsocket_trio.replay import (
    Commit,
    Element,
    Ledger,
    Log,
    Pack,
    add_sink,
    add_source,
)
from rsocket_trio.replay.ledger import Sink, StagedAttempt


def say(*words: object) -> None:
    """One line for the test."""
    print(*words, flush=True)


class WatchedStage:
    """A staged attempt that counts what is added."""

    def __init__(self, stage: StagedAttempt, took: Callable[[int], None]) -> None:
        self._stage = stage
        self._took = took

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stage, name)

    async def add(self, *elements: Element | Pack) -> None:
        """Add elements to the attempt."""
        await self._stage.add(*elements)
        self._took(sum(element.count for element in elements))


class WatchedLog(Log):
    """A log that counts what is written at once."""

    took: Callable[[int], None] | None = None

    async def append_all(
        self, elements: Mapping[int, Iterable[Element | Pack]], *, at: Mapping[int, int] | None = None
    ) -> dict[int, int]:
        groups = {partition: list(some) for partition, some in elements.items()}
        begins = await super().append_all(groups, at=at)
        if self.took is not None:
            self.took(sum(map(len, groups.values())))
        return begins


class Watched(Ledger):
    """A ledger that says how far it is, and can keep the answer to one commit to itself."""

    def __init__(self, log: WatchedLog, tell_after: int, hold: int | None) -> None:
        super().__init__(log)
        log.took = self.took
        self._left = tell_after
        self._tell_after = tell_after
        self._hold = hold

    def took(self, count: int) -> None:
        """Count elements."""
        self._left -= count
        if self._left <= 0 < self._left + count:
            say("took", self._tell_after)

    async def begin(self, *terms: Any, **more: Any) -> StagedAttempt:
        stage: Any = WatchedStage(await super().begin(*terms, **more), self.took)
        return stage  # type: ignore[no-any-return]

    async def _commit(self, wanted: Sink, attempts: Mapping[str, int], **terms: Any) -> Commit:
        done = await super()._commit(wanted, attempts, **terms)
        if done.promoted:
            say("promoted", wanted.batch)
            if wanted.batch == self._hold:
                await trio.sleep_forever()
        else:
            say("repeated", wanted.batch)
        return done


async def main(given: dict[str, Any]) -> None:
    """Serve until killed."""
    responder = Responder()
    await trio.Path(given["directory"]).mkdir(exist_ok=True)
    # Kept in a file, the source is the same after a kill.
    rows = Log(Path(given["directory"], "numbers.db") if given.get("is_kept") else None, 2)
    await rows.open()
    for partition in range(2):
        count = given.get("source_rows", 0) // 2
        if count and not rows.bounds(partition)[1]:
            await rows.append_all({partition: [Element(b"%d" % (2 * n + partition)) for n in range(count)]})
    add_source(responder, "numbers", rows)
    async with WatchedLog(Path(given["directory"], "log.db"), 2) as log:
        ledger = Watched(log, given.get("tell_after", 0), given.get("hold"))
        add_sink(responder, "orders", ledger)

        @responder.request_response("dump")
        async def dump(request: object) -> bytes:
            records = [
                one for partition in log.partitions() async for one in log.read(partition, *log.bounds(partition))
            ]
            return json.dumps([(record.data or b"").decode() for record in records]).encode()

        async with trio.open_nursery() as nursery:
            [uri] = await nursery.start(partial(serve, responder, [given["uri"]]))
            say("listening", uri)


if __name__ == "__main__":
    trio.run(main, json.loads(sys.argv[1]))
