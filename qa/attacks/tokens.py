"""Tokens must not be guessable: a server takes no longer, and says nothing else, for a token that was one than for one
that never was."""

from __future__ import annotations

import random
import secrets
import statistics
import time
from typing import TYPE_CHECKING

import trio

from qa.attacks.harness import expect
from qa.resume.abuse import dialled, resuming_server
from rsocket_trio import ResumeOptions
from rsocket_trio.rsocket.resume_protocol import TOKEN_SIZE
from tests.conformance import raw
from tests.conformance.resuming import resume

if TYPE_CHECKING:
    from qa.attacks.held import Load

SESSIONS = 200
SECONDS = 0.05
"""Seconds that a session waits before it expires."""
NOISE = 0.05
"""Share of a median by which two honest measurements differ."""
OPTIONS = ResumeOptions(session_seconds=SECONDS)


async def expired(port: int) -> list[bytes]:
    """Tokens of sessions that were: their clients went, and the server waited long enough."""
    tokens = [secrets.token_bytes(TOKEN_SIZE) for _ in range(SESSIONS)]
    for token in tokens:
        async with dialled(port) as client:
            await client.send(raw.setup(token=token))
            await client.expect_alive()
    return tokens


async def measure(count: int, noise: float = NOISE, seed: int = 1) -> str:
    """So many tries of each kind, in any order. Raise ``Missed`` if code, words or medians differ."""
    chance = random.Random(seed)
    took: tuple[list[float], list[float]] = ([], [])
    answers: tuple[set[tuple[int, bytes]], set[tuple[int, bytes]]] = (set(), set())
    async with resuming_server(OPTIONS) as (port, sessions):
        tokens = await expired(port)
        with trio.fail_after(10):
            while len(sessions):  # noqa: ASYNC110
                await trio.sleep(SECONDS)
        kinds = [0, 1] * count
        chance.shuffle(kinds)
        for kind in kinds:
            token = chance.randbytes(TOKEN_SIZE) if kind else chance.choice(tokens)
            async with dialled(port) as client:
                began = time.perf_counter()
                await client.send(resume(raw.RS10, token))
                answer = await client.receive()
                took[kind].append(time.perf_counter() - began)
            answers[kind].add((answer.error_code, answer.body[4:]))
    expect(answers[0] == answers[1], f"expired tokens are answered {answers[0]}, unknown ones {answers[1]}")
    was, never = (statistics.median(times) for times in took)
    text = f"{count} expired tokens: median {was * 1e6:.0f} us; {count} unknown ones: {never * 1e6:.0f} us"
    expect(abs(was - never) <= noise * max(was, never), text)
    ((code, data),) = answers[0]
    return f"{text}; each is answered {code:#x} {data.decode()!r}"


def tokens(size: Load) -> str:
    """Raise ``Missed`` if the server tells the one from the other."""
    return trio.run(measure, size.tokens, NOISE * size.slack)
