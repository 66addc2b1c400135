"""What makes a store for resumption go on: nobody waits for a beat that is far away, and nobody asks without end."""

from __future__ import annotations

from typing import Any

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
from tests.conformance.raw import ERROR, INVALID, RS10, Log, ask, keepalive, stream
from tests.conformance.resuming import begin, server, with_options
from tests.each_row import each_row

SLOW = Keepalive(interval=1000, max_lifetime=5000)
"""No beat comes by itself within a test."""
HEADER = 6
"""Bytes of a frame beside its data."""


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


@each_row("count", [100, 700, 3000])
async def test_refusals_that_fill_the_store_hold_up_nothing(autojump_clock: Any, count: int) -> None:
    limits = Limits(streams=1, reply_frames=50)
    answers, rejected = await answered(ResumeOptions(store_bytes=1024), count * [10], limits=limits)

    assert len(answers) + rejected == count
    assert rejected
    assert trio.current_time() < 100


async def test_what_empties_the_store_is_read_although_more_answers_wait_than_may(autojump_clock: Any) -> None:
    # The store is nearly full and asked for a sign already: the send task finds that nothing fits, and writes nothing.
    options = with_options(store_bytes=1024)
    limits = Limits(reply_frames=4)
    async with server(RS10, Log().responder, options, limits=limits, fragment_size=1024) as harbour:
        peer = await begin(harbour, RS10)
        kept = 0
        for stream_id, left in ((1, 500), (3, 10)):
            await peer.send(ask(stream_id, bytes(options.store_bytes - left - kept - HEADER)))
            kept += HEADER + len((await peer.receive()).body)
        await peer.receive()  # asks how much came

        await peer.send(*[stream(stream_id, 0) for stream_id in range(5, 17, 2)])
        await peer.expect_silence(1)
        await peer.send(keepalive(respond=False, position=kept))

        refusals = [await peer.receive() for _ in range(6)]
        assert {(refusal.type, refusal.error_code) for refusal in refusals} == {(ERROR, INVALID)}
