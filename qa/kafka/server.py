"""A server over topics of Kafka: a source ``numbers`` and a sink ``orders``, which several of them may serve.

python -m qa.kafka.server '{"servers": "127.0.0.1:9092", "numbers": TOPIC, "orders": TOPIC, "uri": "tcp://127.0.0.1:0"}'

It prints ``listening URI``, ``staged N`` for every attempt, ``committing B`` and ``promoted B`` or ``repeated B``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from functools import partial
from typing import Any

import trio

from rsocket_trio import Responder, serve
from rsocket_trio.replay import Commit, KafkaLedger, KafkaLog, add_sink, add_source
from rsocket_trio.replay.ledger import Sink


def say(*words: object) -> None:
    """Print one line."""
    print(*words, flush=True)


class Watched(KafkaLedger):
    """A ledger that says how far it is."""

    async def _commit(self, wanted: Sink, attempts: Mapping[str, int], **terms: Any) -> Commit:
        say("committing", wanted.batch)
        done = await super()._commit(wanted, attempts, **terms)
        say("promoted" if done.promoted else "repeated", wanted.batch)
        return done


async def main(given: dict[str, Any]) -> None:
    """Serve until killed."""
    responder = Responder()
    servers, partitions = given["servers"], given.get("partitions", 2)
    async with KafkaLog(servers, given["numbers"], partitions) as numbers:
        add_source(responder, "numbers", numbers)
        async with KafkaLog(servers, given["orders"], partitions) as orders, Watched(orders) as ledger:
            add_sink(responder, "orders", ledger)
            async with trio.open_nursery() as nursery:
                [uri] = await nursery.start(partial(serve, responder, [given["uri"]]))
                say("listening", uri)


if __name__ == "__main__":
    trio.run(main, json.loads(sys.argv[1]))
