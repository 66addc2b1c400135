"""What makes a store for resumption go on: nobody waits for a beat that is far away, and nobody asks without end."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from rsocket_trio import (
    Keepalive,
    Limits,
    Payload,
    Rejected,
    Responder,
    ResumeOptions,
    open_connection_over,
    serve,
)
from rsocket_trio.testing import SimulatedNetwork

SLOW = Keepalive(interval=1000, max_lifetime=5000)
"""No beat comes by itself within a test."""


async def answered(
    server_resume: ResumeOptions, *rounds: list[int], limits: Limits | None = None
) -> tuple[list[int], int]:
    """The sizes of the answers to requests of these sizes, those of a round at once; and how many were rejected."""
    network = SimulatedNetwork(1)
    responder = Responder()

    @responder.request_response
    def echo(request: Payload) -> bytes:
        return request.data

    answers: list[int] = []
    rejected = 0

    async def ask(connection: Any, size: int) -> None:
        nonlocal rejected
        try:
            answers.append(len((await connection.request_response(bytes(size))).data))
        except Rejected:
            rejected += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(
            lambda: serve(
                responder,
                [network.listener()],
                resume=server_resume,
                limits=limits or Limits(),
                fragment_size=1024,
                grace=0,
            )
        )
        async with open_connection_over(
            network.connect, resume=ResumeOptions(), keepalive=SLOW, fragment_size=1024
        ) as connection:
            for sizes in rounds:
                async with trio.open_nursery() as calls:
                    for size in sizes:
                        calls.start_soon(ask, connection, size)
        nursery.cancel_scope.cancel()
    return answers, rejected


async def test_a_store_of_one_fragment_holds_up_nothing(autojump_clock: Any) -> None:
    # The first answer leaves the store less than half full, and without room for a fragment of the second.
    answers, _ = await answered(ResumeOptions(store_bytes=1024), [100], [10_000], [10_000])

    assert answers == [100, 10_000, 10_000]
    assert trio.current_time() < 100


@pytest.mark.parametrize("count", [100, 700, 3000])
async def test_refusals_that_fill_the_store_hold_up_nothing(autojump_clock: Any, count: int) -> None:
    limits = Limits(streams=1, reply_frames=50)
    answers, rejected = await answered(ResumeOptions(store_bytes=1024), count * [10], limits=limits)

    assert len(answers) + rejected == count
    assert rejected
    assert trio.current_time() < 100
