"""The page on loads has every term, and the command every option that it has."""

from __future__ import annotations

import re
from typing import Any

import attrs

from rsocket_trio.cli.load import ARRIVALS, INTERACTIONS, terms_of
from rsocket_trio.cli.load import command as load_command
from rsocket_trio.loadgen import Share, Stage, mix, plan
from rsocket_trio.loadgen.plan import Plan
from tests.blocks import page
from tests.each_row import each_row

PAGE = page("docs/reference/loadgen.md")


def test_the_page_has_every_term() -> None:
    [table] = [part for part in PAGE.split("\n\n") if part.startswith("| term |")]
    names = [name for line in table.splitlines() for name in re.findall(r"`(\w+)`", line.split("|")[1])]

    assert sorted(names) == sorted(field.name for field in attrs.fields(Plan) if field.name != "uri")


def test_the_command_offers_what_a_plan_takes() -> None:
    assert (INTERACTIONS, ARRIVALS) == (mix.INTERACTIONS, plan.ARRIVALS)


def test_options_become_terms() -> None:
    arguments = ["tcp://h:1", "--rate", "5", "-r", "echo", "-u", "ada:pw", "--limit-rate", "9", "--no-probe"]
    context = load_command.make_context("load", [*arguments, "--keepalive", "40", "-H", "A: b", "--data-mime", "text"])

    found = Plan(**terms_of(context.params))

    assert (found.uri, found.rate, found.route, found.credit, found.probe) == ("tcp://h:1", 5.0, "echo", 9, False)
    assert (found.keepalive.interval, found.headers, found.data_mime) == (40.0, (("A", "b"),), "text/plain")
    assert found.metadata is not None
    assert b"ada" in found.metadata
    assert found.setup.metadata is not None
    assert b"ada" in found.setup.metadata
    assert found == Plan(
        uri="tcp://h:1",
        rate=5.0,
        route="echo",
        metadata=found.metadata,
        credit=9,
        probe=False,
        keepalive=found.keepalive,
        headers=(("A", "b"),),
        data_mime="text/plain",
        setup=found.setup,
    )


@each_row(
    ("arguments", "terms"),
    [
        (("--rate", "5"), {"rate": 5.0}),
        (("--rate", "5", "--seconds", "3"), {"rate": 5.0, "seconds": 3.0}),
        (("--rate", "5", "-n", "20"), {"rate": 5.0, "requests": 20}),
        (("--arrivals", "closed", "-n", "20"), {"arrivals": "closed", "requests": 20}),
        (("--rate", "5..9"), {"stages": (Stage(5, 10, 9),)}),
        (("--rate", "0..9", "--seconds", "3"), {"stages": (Stage(0, 3, 9),)}),
        (("--rate", "5@4"), {"stages": (Stage(5, 4, 5),)}),
        (("--rate", "0..9@2,9@1.5,0@1"), {"stages": (Stage(0, 2, 9), Stage(9, 1.5, 9), Stage(0, 1, 0))}),
    ],
    ids=str,
)
def test_a_rate_is_one_or_stages(arguments: tuple[str, ...], terms: dict[str, Any]) -> None:
    context = load_command.make_context("load", ["tcp://h:1", *arguments])

    found, wanted = Plan(**terms_of(context.params)), Plan(uri="tcp://h:1", **terms)

    terms_of_both = [(each.rate, each.stages, each.seconds, each.requests) for each in (found, wanted)]
    assert terms_of_both[0] == terms_of_both[1]


@each_row(
    ("arguments", "arrivals"),
    [
        ((), "constant"),
        (("--poisson",), "poisson"),
        (("--arrivals", "poisson"), "poisson"),
        (("--arrivals", "constant", "--poisson"), "poisson"),
    ],
)
def test_arrivals_are_constant_unless_they_are_to_be_random(arguments: tuple[str, ...], arrivals: str) -> None:
    context = load_command.make_context("load", ["tcp://h:1", "--rate", "5", *arguments])

    assert Plan(**terms_of(context.params)).arrivals == arrivals


def test_shares_of_a_mix_are_words() -> None:
    words = ["response:echo weight=7 size=10,2000", "stream:'a b' take=5 name=ticks", "channel items=2 data=x"]
    arguments = [part for each in words for part in ("--mix", each)]
    context = load_command.make_context("load", ["tcp://h:1", "--rate", "5", *arguments])

    assert Plan(**terms_of(context.params)).mix == (
        Share(route="echo", weight=7, sizes=(10, 2000)),
        Share(interaction="stream", route="a b", take=5, name="ticks"),
        Share(interaction="channel", items=2, data=b"x"),
    )
