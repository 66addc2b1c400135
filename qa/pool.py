"""``python -m qa.pool [--seconds N] [--listen URI]``: a client of four servers that are killed, or stopped, in turn.

Of callers that keep requests in flight, those fail whose server was killed under them, and no others; where servers
stop by SIGTERM none fails. Equal servers answer equal shares, and one at a tenth of their speed a small one.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial

import attrs
import trio

from qa.processes import end_of
from qa.restarts import Server, serving
from rsocket_trio import Backoff, ConnectionLost, Pool, open_pool

SERVERS = 4
CALLERS = 200
PERIOD = 3.0
"""Seconds between the end of one server and that of the next."""
BACKOFF = Backoff(first_delay=0.05, longest_delay=0.5)
MAX_DEVIATION, MAX_SLOW_SHARE = 0.05, 0.1
"""The largest distance of a server's share from a quarter, and the largest share of one at a tenth of the speed."""
HIT_TIMEOUT = 10.0
"""Seconds that calls of a killed server get to end."""


@attrs.define(eq=False)
class Seen:
    """The answers by process, the calls that failed, and for each kill the requests that its server had in flight."""

    answers: Counter[bytes] = attrs.field(factory=Counter)
    failures: list[str] = attrs.field(factory=list)
    kills: list[tuple[int, int]] = attrs.field(factory=list)
    """For each kill the requests in flight on that server, and the calls that failed until the next one."""

    def check(self, *, kills: bool) -> None:
        """Raise ``AssertionError`` unless only those failed that may."""
        assert self.answers, "nothing was answered"
        if not kills:
            assert not self.failures, self.failures
        for in_flight, failed in self.kills:
            assert failed <= in_flight, f"{failed} calls failed, and the killed server had {in_flight} in flight"


async def call(pool: Pool, seen: Seen) -> None:
    """Make one request after the other."""
    while True:
        try:
            answer = await pool.request_response(b"x", route="answer")
        except ConnectionLost as error:
            seen.failures.append(str(error))
        else:
            seen.answers[answer.data.split()[0]] += 1


async def end(server: Server, nursery: trio.Nursery, pool: Pool, seen: Seen, *, kill: bool) -> None:
    """End one server, and start it again on its port."""
    assert server.process is not None
    if not kill:
        server.process.terminate()
        nursery.start_soon(end_of, server.process)
        await server.process.wait()
        return await server.start()
    [member] = [member for member in pool.members if member.uri == server.uri]
    failed, load = len(seen.failures), member.load
    server.process.kill()
    with trio.fail_after(HIT_TIMEOUT):
        while member.state == "connected":
            # Until the loss is noticed requests go to it in the place of those that it answered last.
            load = max(load, member.load)
            await trio.lowlevel.checkpoint()
    await end_of(server.process)
    await server.start()
    return seen.kills.append((load, len(seen.failures) - failed))


async def watched(
    *, kill: bool, ends: int, callers: int = CALLERS, listen: str = "tcp://127.0.0.1:0", period: float = PERIOD
) -> Seen:
    """End servers so often, one after the other, under so many calls in flight."""
    seen = Seen()
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(serving(0, listen)) for _ in range(SERVERS)]
        async with (
            open_pool([server.uri for server, _ in servers], backoff=BACKOFF) as pool,
            trio.open_nursery() as nursery,
        ):
            for _ in range(callers):
                nursery.start_soon(call, pool, seen)
            for number in range(ends):
                await trio.sleep(period)
                server, processes = servers[number % SERVERS]
                await end(server, processes, pool, seen, kill=kill)
            await trio.sleep(1)
            nursery.cancel_scope.cancel()
    return seen


async def shares(
    responders: Sequence[str], *, seconds: float, callers: int = CALLERS, listen: str = "tcp://127.0.0.1:0"
) -> list[float]:
    """Return the share of the answers that each server gave, in the order of ``responders``."""
    seen = Seen()
    async with AsyncExitStack() as stack:
        servers = [(await stack.enter_async_context(serving(0, listen, name)))[0] for name in responders]
        async with open_pool([server.uri for server in servers]) as pool, trio.open_nursery() as nursery:
            for _ in range(callers):
                nursery.start_soon(call, pool, seen)
            await trio.sleep(1)
            seen.answers.clear()  # of the time in which not all were connected
            await trio.sleep(seconds)
            nursery.cancel_scope.cancel()
        assert not seen.failures, seen.failures
        pids = [b"%d" % server.process.pid for server in servers if server.process is not None]
    return [seen.answers[pid] / seen.answers.total() for pid in pids]


def check_shares(figures: Sequence[float], *, is_last_slow: bool) -> None:
    """Raise ``AssertionError`` unless each server has answered its share."""
    if is_last_slow:
        assert figures[-1] < MAX_SLOW_SHARE, f"the slow server answered {figures[-1]:.1%}"
    else:
        assert max(abs(share - 1 / len(figures)) for share in figures) <= MAX_DEVIATION, figures


def main(arguments: list[str]) -> int:
    """Run both ways, and print what was seen. Return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m qa.pool", description=__doc__)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--listen", default="tcp://127.0.0.1:0")
    options = parser.parse_args(arguments)
    for kill in (True, False):
        ends = max(1, round(options.seconds / PERIOD))
        seen = trio.run(partial(watched, kill=kill, ends=ends, listen=options.listen))
        seen.check(kills=kill)
        how = "killed" if kill else "stopped"
        print(f"{ends} servers {how}: {seen.answers.total()} answers, {len(seen.failures)} failed", seen.kills or "")
    for last in ("responder", "slow"):
        responders = [*["responder"] * (SERVERS - 1), last]
        figures = trio.run(partial(shares, responders, seconds=options.seconds / 3, listen=options.listen))
        check_shares(figures, is_last_slow=last == "slow")
        print(f"shares of the answers, the last server {last}:", *[f"{share:.1%}" for share in figures])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
