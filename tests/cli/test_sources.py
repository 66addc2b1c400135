"""``sources``: what it prints of a server, and how it ends where there is nothing to print."""

from __future__ import annotations

import json

from rsocket_trio import Responder
from rsocket_trio.replay import Log, add_source
from tests.cli.commands import run
from tests.cli.test_routes import serving


async def test_sources_are_shown_by_partition_and_as_json() -> None:
    responder, log = Responder(), Log(partitions=2)
    await log.open()
    for number in range(12):
        await log.append(b"%d" % number, partition=1)
    await log.trim(1, 3)
    add_source(responder, "orders", log)
    add_source(responder, "sensors.a", Log())
    async with serving(responder) as uri:
        shown = await run("sources", uri)
        some = await run("sources", uri, "--pattern", "sensors.*", "--json")
        none = await run("sources", uri, "--pattern", "prices.*")

    lines = ["orders     0  0   0", "orders     1  3  12", "sensors.a  0  0   0"]
    assert (shown.code, shown.stdout.splitlines(), shown.stderr) == (0, lines, "")
    assert json.loads(some.stdout) == {"sensors.a": {"partitions": {"0": {"earliest": 0, "latest": 0}}}}
    assert (none.code, none.stdout, none.stderr) == (1, "", "rsocket-trio: the server has no source like 'prices.*'\n")


async def test_a_server_that_lists_no_sources_is_code_5() -> None:
    responder = Responder()
    responder.request_response("rsocket-trio.other")(lambda request: b"")
    async with serving(responder) as uri:
        shown = await run("sources", uri)

    said = "Rejected: the server lists no sources: it has none, or its version is older than the list\n"
    assert (shown.code, shown.stdout, shown.stderr) == (5, "", said)


async def test_an_answer_that_is_no_list_is_code_1() -> None:
    responder = Responder()
    responder.request_response("rsocket-trio.sources")(lambda request: b"hello")
    async with serving(responder) as uri:
        shown = await run("sources", uri)

    assert (shown.code, shown.stdout) == (1, "")
    assert shown.stderr == "rsocket-trio: the server's answer on 'rsocket-trio.sources': not a list of sources: hello\n"
