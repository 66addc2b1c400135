"""Cuts that are aimed: at each byte of SETUP, of RESUME, of its answer, and of what is sent again behind them."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from functools import partial

import attrs
import trio

from qa.items import ASKED, ASKING
from qa.resume.ledger import Ledger
from qa.resume.proxy import FIN, RST, Cut, cutting_proxy
from qa.resume.recorder import CLIENT, SERVER, Recorder
from rsocket_trio import (
    Channel,
    ConnectionLost,
    Payload,
    RejectedResume,
    Responder,
    ResumeOptions,
    open_connection,
    serve,
)
from rsocket_trio.rsocket.dialect import dialect_named

AGAIN = 200
"""Bytes of what is sent again that are aimed at."""
ITEMS = 12
OPENING = bytes(range(150))
OPTIONS = ResumeOptions(session_seconds=5, answer_seconds=0.5, first_delay=0.001, longest_delay=0.01)
REJECTED_RESUME = 0x00000004
PATIENCE = 10.0


@attrs.frozen
class Shot:
    """One run: its cuts, connection by connection, and what they are aimed at."""

    what: str
    cuts: tuple[Cut, ...]


class Range:
    """A server whose one client is cut off again and again, each time in a new session."""

    def __init__(self, dialect: str, port: int, ledgers: dict[int, Ledger]) -> None:
        self._dialect = dialect
        self._port = port
        self._ledgers = ledgers
        self._runs = 0
        self._cuts_made = 0

    async def shots(self) -> list[Shot]:
        """Each byte once."""
        recorder = await self._run((Cut(CLIENT, 1_500, FIN),))
        assert (recorder.complaints, recorder.resumed) == ([], 1)
        # Bytes of the first frames, prefix included.
        firsts = recorder.firsts
        setup = firsts[0, CLIENT]
        setup_ok = firsts[0, SERVER] if dialect_named(self._dialect).entries else 0
        shots = [Shot(f"byte {at} of SETUP", (cut(CLIENT, at),)) for at in range(1, setup + 1)]
        for side, begun in ((CLIENT, setup), (SERVER, setup_ok)):
            shots += [
                Shot(f"{side}'s byte {at} of the second connection", (Cut(side, begun + 10, FIN), cut(side, at)))
                for at in range(1, firsts[1, side] + AGAIN + 1)
            ]
        return shots

    async def fire(self, shot: Shot) -> str | None:
        """Return the fault of its end; ``None`` when it was clean, or refused with the code for that."""
        try:
            recorder = await self._run(shot.cuts)
        except RejectedResume as refusal:
            if refusal.code == REJECTED_RESUME and shot.what.endswith("of SETUP"):
                return None
            return f"{shot.what}: {refusal!r}"
        except ConnectionLost as error:
            # Where a SETUP is answered nothing has begun before the answer is here.
            is_opening = shot.what.endswith("of SETUP") and dialect_named(self._dialect).entries
            return None if is_opening else f"{shot.what}: {error!r}"
        except trio.TooSlowError as error:
            return f"{shot.what}: {error!r}"
        if self._cuts_made < len(shot.cuts):
            return f"{shot.what}: {self._cuts_made} cuts of {len(shot.cuts)}"
        verdict = self._ledgers[self._runs].verdict()
        if verdict.is_clean and not recorder.complaints and verdict.items == 3 * ITEMS:
            return None
        return f"{shot.what}: {verdict} {recorder.complaints}"

    async def _run(self, cuts: Sequence[Cut]) -> Recorder:
        self._runs += 1
        number = self._runs
        ledger = self._ledgers[number] = Ledger()
        recorder = Recorder(dialect_named(self._dialect))
        with trio.fail_after(PATIENCE):
            async with (
                cutting_proxy(self._port, iter(cuts), recorder=recorder) as proxy,
                open_connection(proxy.uri, dialect=self._dialect, resume=OPTIONS) as client,
            ):
                opening = OPENING + b"%d" % number
                async with client.request_stream(opening) as items, client.request_channel(opening) as channel:
                    for _ in range(ITEMS):
                        await channel.send(ledger.offer(number, ASKING))
                    async for item in items:
                        ledger.receive(item)
                    await channel.send_eof()
                    async for item in channel:
                        ledger.receive(item)
            self._cuts_made = proxy.made
        return recorder


def cut(side: str, at: int) -> Cut:
    """A cut at a byte, its manner as different from byte to byte as can be."""
    return Cut(side, at, (FIN, RST)[at % 2], at % 3 != 0)


def responder_for(ledgers: dict[int, Ledger]) -> Responder:
    """Return the calls of the clients: a stream, and a channel that sends as well; each run has its ledger."""
    responder = Responder()

    @responder.request_stream
    async def stream(request: Payload) -> AsyncIterator[Payload]:
        number = int(request.data[len(OPENING) :])
        ledgers[number].start(0)
        for _ in range(ITEMS):
            yield ledgers[number].offer(0, ASKED)

    @responder.request_channel
    async def channel(channel: Channel) -> None:
        number = int(channel.request.data[len(OPENING) :])
        ledgers[number].start(number)
        async for item in channel:
            ledgers[number].receive(item)
        for _ in range(ITEMS):
            await channel.send(ledgers[number].offer(number, ASKED))

    return responder


async def misses(
    dialect: str, *, every: int = 1, seed: int = 0, pairs: int = 0, seconds: float = 600.0
) -> tuple[int, list[str]]:
    """Fire at every so-manyth byte, and so many random pairs; how many shots that were, and what went wrong."""
    chance = random.Random(seed)
    ledgers: dict[int, Ledger] = {}
    wrong: list[str] = []
    async with trio.open_nursery() as nursery:
        [uri] = await nursery.start(
            partial(serve, resume=OPTIONS, grace=0), responder_for(ledgers), "tcp://127.0.0.1:0"
        )
        aim = Range(dialect, int(uri.rpartition(":")[2]), ledgers)
        singles = await aim.shots()
        double = [shot for shot in singles if len(shot.cuts) > 1]
        shots = singles[seed % every :: every]
        for _ in range(pairs):
            one, two = chance.choice(double), chance.choice(double)
            shots.append(Shot(f"{one.what}, then {two.what}", (*one.cuts, two.cuts[1])))
        with trio.fail_after(seconds):
            for shot in shots:
                said = await aim.fire(shot)
                if said is not None:
                    wrong.append(said)
                ledgers.clear()
        nursery.cancel_scope.cancel()
    return len(shots), wrong
