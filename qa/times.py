"""``python -m qa.times [NAME ...]``: scenes of the tests, each with the bars on its times.

Tests judge what happens and not when, for they may run beside anything. These want the machine to themselves.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import trio

from qa import hostile_payloads
from rsocket_trio.mux.framing import Framing24, Framing32
from tests.reliability import timed
from tests.transports.aeron.crowd import cost_at_rest, cost_of_connecting

LIFETIME = 1.5
LARGEST = 15_000_000
AERON_CONNECT = 0.003
"""CPU seconds of either side for a client that connects, asks and leaves over Aeron."""


class Bar(NamedTuple):
    """A time and its bar."""

    name: str
    seconds: float
    most: float


class Scene(NamedTuple):
    """A row: a scene by name, and the function that plays it and returns its times."""

    name: str
    play: Callable[[], Sequence[Bar]]


def no_descriptors() -> int:
    """Stand in for the count that the test makes."""
    return 0


def kill() -> list[Bar]:
    raised = [seconds for turn in range(10) for seconds in trio.run(timed.kill_a_server, 0.02 + 0.01 * turn)]
    return [Bar("a call raises after its server is killed", max(raised), 1.0)]


def stop() -> list[Bar]:
    failed = trio.run(timed.stop_a_server)
    return [Bar("a call raises after its server is stopped", max(failed), timed.SILENCE * 1.1 + 0.5)]


def silence() -> list[Bar]:
    lasted = trio.run(timed.fall_silent, 200, LIFETIME)
    return [Bar("200 silent clients are closed", max(lasted), LIFETIME + 0.7)]


def listener(scheme: str) -> list[Bar]:
    lasted, asked, _ = trio.run(timed.attack_a_listener, scheme, list(timed.ATTACKS), 5, no_descriptors)
    return [
        Bar("an attacker is closed", max(lasted), timed.SETUP_TIMEOUT + 2),
        Bar("a neighbour connects and is answered", max(asked), 1.0),
    ]


def handshakes(scheme: str) -> list[Bar]:
    attack = "half a handshake" if scheme == "tls" else "half a request"
    lasted, asked, _ = trio.run(timed.attack_a_listener, scheme, [attack], timed.HANDSHAKES, no_descriptors)
    return [
        Bar("a handshake that never ends is closed", max(lasted), timed.SETUP_TIMEOUT + 2),
        Bar("a neighbour connects and is answered", max(asked), 0.6),
    ]


def gathering() -> list[Bar]:
    """Copying what is there for each piece would take 16 times as long for 4 times the bytes."""

    def seconds(framing: type[Framing24] | type[Framing32], size: int) -> float:
        data = framing(max_frame=LARGEST, smallest=6).join([bytes(size)])
        pieces = [data[start : start + 1_000] for start in range(0, len(data), 1_000)]
        best = float("inf")
        for _ in range(5):
            gatherer = framing(max_frame=LARGEST, smallest=6)
            began = time.perf_counter()
            for piece in pieces:
                gatherer.feed(piece)
            best = min(best, time.perf_counter() - began)
        return best

    return [
        Bar(f"{framing.__name__} gathers 12 MB", seconds(framing, 12_000_000), 10 * seconds(framing, 3_000_000))
        for framing in (Framing24, Framing32)
    ]


def payloads(name: str) -> list[Bar]:
    form = hostile_payloads.FORMATS[name]
    return [
        Bar(
            f"{pair.name}: CPU beyond that of its honest twin",
            hostile_payloads.excess(form, pair),
            hostile_payloads.MOST,
        )
        for pair in hostile_payloads.twins(form)
    ]


def aeron_connects() -> list[Bar]:
    cost = trio.run(cost_of_connecting, 100)
    return [
        Bar("CPU of a connect at the client, with 100 open", cost.client, AERON_CONNECT),
        Bar("CPU of a connect at the server, with 100 open", cost.server, AERON_CONNECT),
    ]


def aeron_rests() -> list[Bar]:
    return [
        Bar(f"CPU of a second at the {side}, with {count} idle over Aeron", seconds, most)
        for count, most in ((1, 0.03), (100, 0.12))
        for side, seconds in trio.run(cost_at_rest, count)._asdict().items()
    ]


SCENES = [
    Scene("kill", kill),
    Scene("stop", stop),
    Scene("silence", silence),
    *(Scene(f"listener-{scheme}", partial(listener, scheme)) for scheme in ("tcp", "tls", "ws", "wss")),
    *(Scene(f"handshakes-{scheme}", partial(handshakes, scheme)) for scheme in ("tls", "ws")),
    Scene("gathering", gathering),
    *(Scene(f"payloads-{name}", partial(payloads, name)) for name in hostile_payloads.FORMATS),
    Scene("aeron-connects", aeron_connects),
    Scene("aeron-rests", aeron_rests),
]


def main(words: Sequence[str]) -> int:
    """Play the scenes that are named, all by default. Return 1 if a bar was missed."""
    unknown = set(words) - {scene.name for scene in SCENES}
    if unknown:
        print(f"no scene {', '.join(sorted(unknown))}; there are {', '.join(scene.name for scene in SCENES)}")
        return 2
    logging.getLogger("rsocket_trio").setLevel(logging.CRITICAL)  # a line for each connection that ends in an error
    missed = 0
    for scene in SCENES:
        if words and scene.name not in words:
            continue
        for bar in scene.play():
            missed += bar.seconds > bar.most
            verdict = "FAIL" if bar.seconds > bar.most else "pass"
            print(f"{scene.name:16} {verdict}: {bar.name}: {bar.seconds:.4f} s, at most {bar.most:.3f}", flush=True)
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
