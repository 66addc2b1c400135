"""The options of the command become terms of a load."""

from __future__ import annotations

from typing import Any

from rsocket_trio.cli.load import command as load_command
from rsocket_trio.cli.load import terms_of
from rsocket_trio.loadgen.plan import Plan


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
