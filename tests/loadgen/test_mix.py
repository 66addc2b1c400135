"""Mixes of interactions: each share gets its part of the requests, and its own counts."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
import trio.testing

from rsocket_trio.loadgen import Share
from rsocket_trio.loadgen.load_task import Driver
from rsocket_trio.loadgen.measures import Recorder
from rsocket_trio.loadgen.summary import table
from tests.each_row import each_row
from tests.loadgen.loads import plan, rows_of, served, summary_of, usual

MIX = (
    Share(route="echo", weight=6, sizes=(1, 100)),
    Share(interaction="stream", route="twenty", weight=3, take=4),
    Share(interaction="channel", route="echo", items=2, name="talk"),
    Share(route="full", name="full"),
)


async def test_shares_have_counts_of_their_own_that_add_up(autojump_clock: trio.testing.MockClock) -> None:
    wanted = plan(mix=MIX, rate=550, seconds=2)
    async with served(usual()):
        summary = summary_of(wanted, await rows_of(wanted))

    shares, total = summary.shares, summary.total
    assert list(shares) == ["response:echo", "stream:twenty", "talk", "full"]
    assert sum(counts.due for counts in shares.values()) == total.due == 1100
    assert sum(counts.ok for counts in shares.values()) == total.ok == total.due - shares["full"].due
    for share in MIX:
        assert shares[share.name].due == pytest.approx(1100 * share.weight / 11, rel=0.3)
    assert shares["stream:twenty"].items == 4 * shares["stream:twenty"].ok
    assert shares["talk"].items == 2 * shares["talk"].ok
    assert shares["full"].errors == total.errors == {"ApplicationError 0x333": shares["full"].due}
    assert shares["response:echo"].times["latency"].total == shares["response:echo"].ok


async def test_a_seed_gives_the_same_mix_again(autojump_clock: trio.testing.MockClock) -> None:
    def drawn(seed: str) -> list[str]:
        driver = Driver(plan(mix=MIX), [], seed, Recorder())
        return [driver._draw().name for _ in range(50)]

    assert drawn("1/0") == drawn("1/0") != drawn("1/1")


async def test_the_table_and_json_have_a_part_for_each_share(autojump_clock: trio.testing.MockClock) -> None:
    wanted = plan(mix=MIX[:2], rate=50)
    async with served(usual()):
        summary = summary_of(wanted, await rows_of(wanted))

    lines = table(summary, per_second=False).splitlines()
    assert [line.split()[0] for line in lines[:6] if line] == [
        "second",
        "all",
        "share",
        "response:echo",
        "stream:twenty",
    ]
    said = json.loads(json.dumps(summary.to_dict()))
    assert said["shares"].keys() == {"response:echo", "stream:twenty"}
    assert said["shares"]["stream:twenty"]["items"] == said["items"] - said["shares"]["response:echo"]["items"]


async def test_the_first_request_of_each_share_must_be_answered(autojump_clock: trio.testing.MockClock) -> None:
    wanted = plan(mix=(*MIX[:2], Share(route="never")), probe=True, timeout=1.0)
    async with served(usual()):
        [(_, _, name, _, _)] = await rows_of(wanted)

    assert name == "TooSlowError: the first request of response:never was not answered within 1 s"


@each_row(
    ("terms", "said"),
    [
        ({"mix": MIX, "route": "echo"}, "mix and route exclude each other"),
        ({"mix": MIX, "interaction": "fnf"}, "mix and interaction exclude each other"),
        ({"mix": (MIX[0], MIX[0])}, "mix has response:echo 2 times: give each a name"),
        ({"mix": (Share(route="x" * 256),)}, "255"),
    ],
    ids=["route", "interaction", "twice", "long"],
)
def test_a_mix_that_cannot_be_is_refused(terms: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        plan(**terms)


@each_row(
    ("terms", "said"),
    [
        ({"interaction": "push"}, "interaction 'push': one of response, stream, fnf, channel"),
        ({"weight": 0}, "weight of 0: more than 0"),
        ({"take": 1}, "take is for streams and channels"),
        ({"items": 2}, "items is for channels"),
        ({"data": b"x", "sizes": (1,)}, "data and sizes exclude each other"),
        ({"route": "a\tb"}, "its name must be printable"),
    ],
    ids=str,
)
def test_a_share_that_cannot_be_is_refused(terms: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Share(**terms)
