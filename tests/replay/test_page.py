"""The page on replay: its code runs, and its tables are those of the code."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import trio

from rsocket_trio import open_connection, replay
from rsocket_trio.replay import Element, Ledger, Log, ReplayableLog, ReplayError, elements, sqlite_log, tables
from tests.blocks import page, snippets
from tests.each_row import each_row
from tests.programs import run_program

PAGE = page("docs/howto/replay.md")
REFERENCE = page("docs/reference/replay.md")
FORMATS = page("docs/replay.md")
CODE = [block for block in snippets(PAGE) if "Kafka" not in block.text]
"""What needs a broker is run by tests/kafka."""


def functions() -> dict[str, Any]:
    names: dict[str, Any] = {}
    for block in CODE:
        exec(compile(block.text, f"docs/howto/replay.md:{block.line}", "exec"), names)
    return names


def test_every_block_is_a_function_that_is_called_here() -> None:
    defined = re.findall(r"^async def (\w+)", "".join(block.text for block in CODE), re.MULTILINE)

    assert defined == ["serve_orders", "serve_and_fill", "serve_a_week", "read_orders", "serve_sink"]


@each_row(("server", "found"), [("serve_orders", []), ("serve_and_fill", [0, 2, 4, 6, 8]), ("serve_a_week", [])])
async def test_the_page_serves_and_reads_a_log(server: str, found: list[int], tmp_path: Path) -> None:
    names = functions()
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            [uri] = await nursery.start(started, names[server], tmp_path)
            read = await names["read_orders"](uri)
            nursery.cancel_scope.cancel()

    assert read == [(position, b"order %d" % number) for position, number in enumerate(found)]


async def test_the_page_serves_a_sink(tmp_path: Path) -> None:
    names = functions()
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            [uri] = await nursery.start(started, names["serve_sink"], tmp_path)
            async with open_connection(uri) as client:
                await client.request_response("an order", route="orders.new")
            assert await names["read_orders"](uri) == [(0, b"an order")]
            nursery.cancel_scope.cancel()


async def started(server: Any, folder: Path, *, task_status: trio.TaskStatus[list[str]]) -> None:
    await server(folder, task_status)


def test_the_codes_of_the_errors_are_said() -> None:
    classes = [found for found in vars(replay).values() if isinstance(found, type) and issubclass(found, ReplayError)]
    coded = {cls.__name__: f"0x{cls.default_code:X}" for cls in classes if cls is not ReplayError}
    said = dict(re.findall(r"^\| `(\w+)` \| (0x\w+) \|", REFERENCE, re.MULTILINE))

    assert said == coded
    assert all(f"| {code} |" in FORMATS for code in coded.values())


def test_the_formats_are_those_of_the_code() -> None:
    for name in (elements.RECORD, elements.NULL, *elements.RecordEntry.__struct_fields__):
        assert f"| `{name}` |" in FORMATS


# What another program finds in the file


def test_the_tables_are_those_of_the_code() -> None:
    [section] = re.findall(r"## The file\n(.*?)\n## ", FORMATS, re.DOTALL)
    names = re.findall(r"CREATE TABLE (\w+)", tables.SCHEMA)

    assert sorted(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == sorted(names)
    assert f"0x{sqlite_log.APPLICATION_ID:X}" in section
    assert f"names the layout, {sqlite_log.LAYOUT};" in section
    assert f"{sqlite_log.RESERVE_BYTES >> 20} MiB" in section


async def test_the_questions_and_the_program_of_the_page_read_a_file(tmp_path: Path) -> None:
    path = tmp_path / "orders.log"
    async with Log(path) as log:
        log._clock = lambda: 1_700_000_000_000_000
        await log.append_all({0: [Element(b"one"), Element(None)]})
        await log.append(b"three")
        await log.acknowledge("billing", {0: 2})
        await Ledger(log).commit("shop", 7, {}, query="q")
        # By a program of its own, while the log is in use.
        [block] = snippets(FORMATS)
        shown = await run_program("-c", block.text, path)
    assert (shown.code, shown.stdout.splitlines()) == (0, ["0 b'one'", "1 None", "2 b'three'"]), shown.stderr

    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        answers = [connection.execute(sql).fetchall() for sql in re.findall(r"```sql\n(.*?)```", FORMATS, re.DOTALL)]
    day = "2023-11-14 22:13:20"
    assert answers[0] == [(0, 0, 3, day)]
    assert [row[:3] for row in answers[1]] == [("shop", 7, "q")]
    assert [row[:2] for row in answers[2]] == [("billing", '{"0":2}')]


def test_a_log_of_ones_own_needs_the_methods_that_the_page_names() -> None:
    section = PAGE.partition("## A log of your own")[2]
    named = re.findall(r"`(\w+)`", section.partition("Implement ")[2].partition(";")[0])

    assert sorted(named) == sorted(ReplayableLog.__abstractmethods__)


async def test_a_log_of_ones_own_is_opened_by_a_block_and_read_in_packs() -> None:
    class Rows(Log):
        """Has the methods of the base class where that has them."""

        open = ReplayableLog.open
        read_packs = ReplayableLog.read_packs

    rows = Rows()
    await Log.open(rows)
    async with rows as log:
        await log.append_all({0: [Element(b"a"), Element(b"b")]})
        assert [pack.count for pack in await log.read_packs(0, 0)] == [2]
