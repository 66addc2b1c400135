"""The judge is judged: a server that bounds nothing, and one whose limits are absurd, miss their bars."""

from __future__ import annotations

import time
from typing import Any

import attrs
import pytest

from qa.attacks import harness
from qa.attacks.harness import Attack, Scene, Size, run
from qa.attacks.rows import ATTACKS
from tests.each_row import ALL_CASES, whole

TOY = "qa.attacks.toy"
BY_NAME = {attack.name: attack for attack in ATTACKS}
ABSURD = 2**40


def of_size(name: str, **changes: Any) -> Attack:
    attack = BY_NAME[name]
    return attrs.evolve(attack, quick=attrs.evolve(attack.quick, **changes))


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "CLEARED_IN", 0.2)
    monkeypatch.setattr(harness, "PATIENCE", 0.2)


def missed(result: harness.Result, *parts: str) -> None:
    """Each of these was missed, and nothing was let through."""
    assert not result.passed
    for part in parts:
        assert any(part in miss for miss in result.misses), result.misses


def quiet(scene: Scene) -> str:
    """Says nothing for a while."""
    scene.open(scene.count)
    time.sleep(0.3)
    return "none"


def harmless(**options: object) -> Attack:
    size = Size(count=1, growth=8, seconds=5)
    return Attack(id="-", name="quiet", run=quiet, quick=size, full=size, options=options, rounds=1)


@whole
def test_a_server_that_keeps_every_byte_misses_the_bound_of_its_memory() -> None:
    def pour(scene: Scene) -> str:
        """Bytes without end."""
        scene.line().pour([bytes(65536)] * (scene.count * 16))
        return "taken"

    size = Size(count=64, growth=32)
    missed(run(Attack(id="-", name="bytes", run=pour, quick=size, full=size), module=TOY), "grew by")


def test_a_server_that_closes_nobody_misses_the_reaction_and_keeps_descriptors() -> None:
    missed(run(of_size("before-setup", count=2), module=TOY), "not closed", "left after")


@whole
def test_a_neighbour_that_waits_is_noticed() -> None:
    result = run(harmless(delay=0.25), full=True, module=TOY)
    missed(result, "the probe's median was", "the probe's worst was")


@whole
def test_a_log_that_a_peer_can_fill_is_noticed() -> None:
    missed(run(harmless(logs=5000), module=TOY), "characters in the log")


@whole
def test_a_server_that_dies_is_noticed() -> None:
    def kill(scene: Scene) -> str:
        """The end of the server."""
        scene.victim.process.kill()
        scene.victim.process.wait()
        return "dead"

    missed(run(attrs.evolve(harmless(), run=kill)), "died")


@pytest.mark.parametrize(
    ("name", "limits", "misses"),
    [
        ("endless-payload", {"payload_size": ABSURD, "reassembly_size": ABSURD}, "grew by"),
        ("half-payloads", {"reassembly_size": ABSURD}, "answered"),
        ("tiny-fragments", {"tiny_fragments": ABSURD}, "answered"),
        ("rapid-reset", {"cancels": ABSURD}, "not closed"),
        ("kept-streams", {"streams": ABSURD}, "answered"),
        ("keepalive-unread", {"reply_size": ABSURD, "reply_frames": ABSURD}, "grew by"),
        ("unread-stream", {"outbox_size": 64 * 2**20}, "grew by"),
        ("metadata-bomb", {"metadata_entries": ABSURD}, "answered"),
        ("large-setup", {"setup_size": ABSURD}, "closed"),
    ][None if ALL_CASES else -1 :],
)
def test_a_limit_that_is_raised_to_the_sky_is_missed(name: str, limits: dict[str, object], misses: str) -> None:
    missed(run(of_size(name, count=min(BY_NAME[name].quick.count, 12_000)), limits=limits), misses)
