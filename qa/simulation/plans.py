"""The plan of a simulated run, drawn from its seed: calls, their sizes and pace, and the network."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Literal, TypeVar

import attrs

from rsocket_trio import Keepalive, Limits, StreamuxOptions
from rsocket_trio.limits import MIB
from rsocket_trio.rsocket.dialect import ALL as FAMILY
from rsocket_trio.testing import Faults

STREAMUX = "streamux/1"
DIALECTS = (*FAMILY, STREAMUX)
RESUMABLE = ("rsocket/1.0", "reactivesocket/0.2", "rsocket/2.0-draft")
KEEPALIVE = Keepalive(interval=10, max_lifetime=45)
SILENT = ("reactivesocket/0.0", STREAMUX)
"""Dialects in which silence kills nothing: a half-open connection stays."""
SUBSCRIBING = ("reactivesocket/0.0", "reactivesocket/0.1")
LARGEST = 70_000
SMALLEST_FRAGMENT = 128

Kind = Literal["response", "stream", "push", "channel", "forget", "metadata", "ping", "subscription"]
Failure = Literal["", "error", "bug"]
T = TypeVar("T")


@attrs.frozen(kw_only=True)
class Call:
    """One call of one side, and how its responder answers; both know it by its number alone.

    ``up`` and ``down`` are the sizes of the items. The requester leaves after ``leaves`` items, or at its ``deadline``;
    a channel's handler returns after it read ``returns`` of them; ``fails`` is how a handler ends that does not return.
    """

    number: int
    kind: Kind
    caller: Literal["client", "server"]
    begins: float
    up: tuple[int, ...] = (0,)
    down: tuple[int, ...] = ()
    credit: int = 256
    by_hand: bool = False
    pace: float = 0.0
    reading: float = 0.0
    fails: Failure = ""
    leaves: int | None = None
    returns: int | None = None
    deadline: float | None = None
    metadata: bool = False
    endless: bool = False
    """True if the handler never ends by itself: the deadline must reach it."""

    @property
    def name(self) -> str:
        """Return its name in the checker."""
        return f"{self.caller}-{self.kind}-{self.number}"


@attrs.frozen(kw_only=True)
class Plan:
    """A whole run. Call 0 is the one in whose handler the server calls back."""

    dialect: str
    calls: tuple[Call, ...]
    faults: Faults
    fragment_size: int
    channel_credit: int
    limits: Limits
    leases: tuple[int, float] | None
    streamux: tuple[StreamuxOptions, StreamuxOptions] | None
    resumes: bool
    """True if sessions outlive their connections."""
    may_lose: bool
    """True if a connection may be lost on this network."""

    @property
    def whole(self) -> bool:
        """Return whether requests are joined for their handler, where the dialect has chunks only."""
        return self.streamux is not None and self.streamux[1].requests == "whole"


def sometimes(chance: Random, likely: float, what: T) -> T | None:
    return what if chance.random() < likely else None


def drawn(seed: int, dialect: str, *, resumes: bool = False) -> tuple[Plan, Random]:
    """The plan of a seed, and the chance that the rest of its run is drawn from."""
    chance = Random(f"{dialect} {seed}")
    faults = drawn_faults(chance, dialect)
    if resumes:
        faults = attrs.evolve(faults, duplicate_bytes=(0, 4096))
    largest = LARGEST
    if faults.buffer is not None:
        largest = min(LARGEST, 16 * faults.buffer[0])
    options = drawn_options(chance) if dialect == STREAMUX else None
    joined = options is not None and options[1].requests == "whole"
    calls = [Call(number=0, kind="response", caller="client", begins=0.0, down=(0,))]
    for number in range(1, chance.randint(2, chance.choice((6, 12, 30)))):
        calls.append(drawn_call(chance, number, dialect, largest, joined=joined))
    total = sum(sum(call.up) + sum(call.down) for call in calls)
    plan = Plan(
        dialect=dialect,
        calls=tuple(calls),
        faults=faults,
        fragment_size=max(SMALLEST_FRAGMENT, largest // 200, chance.choice((0, 1000, 65536))),
        channel_credit=chance.choice((1, 3, 256)),
        limits=Limits(
            outbox_size=chance.choice((1, 2000, 100_000, 4 * MIB)),
            # Without credit a full inbox stops reading, and with it everything that its handler waits for.
            inbox_size=8 * MIB if options else chance.choice((1, 2000, 8 * MIB)),
        ),
        leases=(chance.randint(1, 5), chance.uniform(0.5, 3)) if options is None and chance.random() < 0.2 else None,
        streamux=options,
        may_lose=may_lose(faults, total) and not resumes,
        resumes=resumes,
    )
    return plan, chance


def drawn_faults(chance: Random, dialect: str) -> Faults:
    delays = sometimes(chance, 0.7, (0.0, chance.choice((0.01, 0.2, 2.0))))
    least = chance.choice((64, 500, 4000, 65536))
    trouble = chance.choice(("none", "none", "cut", "cut", "vanish", "stall"))
    vanishes = trouble == "vanish" and dialect not in SILENT
    lost = (0, chance.choice((100, 2000, 50_000)))
    return Faults(
        split=sometimes(chance, 0.7, (1, 65536)),
        delay=delays,
        buffer=sometimes(chance, 0.5, (least, 65536)),
        stall=(0.0, 2 * KEEPALIVE.max_lifetime) if trouble == "stall" else None,
        cut_after=lost if trouble == "cut" else None,
        vanish_after=lost if vanishes else None,
        refuse=0.3 if trouble in {"cut", "vanish"} else 0.0,
        # Without resumption a second connection with whole requests would rightly be served as well.
        duplicate=0.2 if chance.random() < 0.3 and dialect != STREAMUX else 0.0,
        duplicate_bytes=(0, 30),
        quiet_after=(0.0, 60.0),
    )


def may_lose(faults: Faults, total: int) -> bool:
    """Return whether keepalives may come too late, or not at all."""
    if faults.cut_after or faults.vanish_after or faults.stall:
        return True
    if faults.buffer is None or faults.delay is None:
        return False
    # What a full buffer lets through in a lifetime, with some room for all that is queued in front of a keepalive.
    return faults.buffer[0] / faults.delay[1] * KEEPALIVE.max_lifetime < 8 * (total + 1000)


def drawn_options(chance: Random) -> tuple[StreamuxOptions, StreamuxOptions]:
    """Of the client and of the server."""
    requests = chance.choice(("whole", "chunks"))
    widths = chance.choice(((0, 0), (1, 4), (14, 29)))
    client, server = (
        StreamuxOptions(
            rec_id=widths[0],
            max_id=widths[1],
            qr=quick,
            qa=not quick,
            rec_len=chance.choice((4, 10, 16)),
            requests=requests,  # type: ignore[arg-type]
            encode_error=(lambda error: b"failed") if requests == "whole" else None,
        )
        for quick in (chance.random() < 0.3 and widths[0] > 0, False)
    )
    return client, server


def drawn_call(chance: Random, number: int, dialect: str, largest: int, *, joined: bool) -> Call:
    kind = chance.choice(kinds(dialect, joined=joined))
    is_single = kind in {"response", "forget", "metadata", "ping"}

    def sizes(count: int) -> tuple[int, ...]:
        return tuple(drawn_size(chance, largest) for _ in range(count))

    few = chance.choice((0, 1, 3, 20))
    down = 0 if kind in {"forget", "metadata", "ping"} else 1 if is_single else few
    up = 1 + chance.choice((0, 1, 5, 20)) if kind == "channel" else 1
    deadline = sometimes(chance, 0.2, chance.uniform(0, 5))
    may_fail = kind in {"response", "stream", "push", "channel"} and (dialect != STREAMUX or joined)
    return Call(
        number=number,
        kind=kind,
        caller=chance.choice(("client", "client", "server")),
        begins=chance.uniform(0, chance.choice((0.01, 5.0))),
        up=sizes(up),
        down=sizes(down),
        credit=chance.choice((1, 2, 7, 256)),
        by_hand=chance.random() < 0.2,
        pace=chance.choice((0.0, 0.0, chance.uniform(0, 1))),
        reading=chance.choice((0.0, 0.0, chance.uniform(0, 1))),
        fails=chance.choice(("error", "bug")) if may_fail and chance.random() < 0.2 else "",
        leaves=None if is_single else sometimes(chance, 0.2, chance.randint(0, 5)),
        returns=sometimes(chance, 0.2, chance.randint(0, 5)) if kind == "channel" else None,
        deadline=deadline,
        endless=deadline is not None and chance.random() < 0.5,
        metadata=dialect != STREAMUX and chance.random() < 0.3,
    )


def kinds(dialect: str, *, joined: bool) -> Sequence[Kind]:
    """Return the interactions of a dialect."""
    if dialect == STREAMUX:
        return ("response", "ping") if joined else ("response", "channel", "channel", "ping")
    some: list[Kind] = ["response", "response", "stream", "stream", "push", "forget", "metadata"]
    if dialect != "reactivesocket/0.0":
        some += ["channel", "channel", "channel", "ping"]
    if dialect in SUBSCRIBING:
        some += ["subscription"]
    return some


def drawn_size(chance: Random, largest: int) -> int:
    most = chance.choice((0, 10, 100, 100, 1000, 4000, LARGEST))
    return chance.randint(0, min(most, largest))
