"""The page on loads has every term, and the command every option that it has."""

from __future__ import annotations

import re
from typing import Any

import attrs

from rsocket_trio.cli.load import command as load_command
from rsocket_trio.cli.load import terms_of
from rsocket_trio.loadgen.plan import Plan
from tests.blocks import page

PAGE = page("docs/reference/loadgen.md")


def test_the_page_has_every_term() -> None:
    [table] = [part for part in PAGE.split("\n\n") if part.startswith("| term |")]
    names = [name for line in table.splitlines() for name in re.findall(r"`(\w+)`", line.split("|")[1])]

    assert sorted(names) == sorted(field.name for field in attrs.fields(Plan) if field.name != "uri")


def test_options_become_terms() -> None:
    arguments = ["tcp://h:1", "--rate", "5", "-r", "echo", "-u", "ada:pw", "--limit-rate", "9", "--no-probe"]
    context = load_command.make_context("load", [*arguments, "--keepalive", "40", "-H", "A: b", "--data-mime", "text"])

    found = Plan(**terms_of(context.params))

    assert (found.uri, found.rate, found.route, found.credit, found.probe) == ("tcp://h:1", 5.0, "echo", 9, False)
    connection: dict[str, Any] = dict(found.connection)
    assert (connection["keepalive"].interval, connection["headers"]) == (40.0, (("A", "b"),))
    assert connection["data_mime"] == "text/plain"
    assert found.metadata is not None
    assert b"ada" in found.metadata
    assert b"ada" in connection["setup"].metadata
