"""The page on replay: its code runs, its tables are those of the code, and every public name is in the reference."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import trio

from rsocket_trio import open_connection, replay
from rsocket_trio.replay import ReplayableLog, ReplayError, element_metadata, segment_records
from tests.blocks import page, snippets
from tests.each_row import each_row

PAGE = page("docs/howto/replay.md")
REFERENCE = page("docs/reference/replay.md")
CODE = snippets(PAGE)


def functions() -> dict[str, Any]:
    names: dict[str, Any] = {}
    for block in CODE:
        exec(compile(block.text, f"docs/howto/replay.md:{block.line}", "exec"), names)
    return names


def test_every_block_is_a_function_that_is_called_here() -> None:
    defined = re.findall(r"^async def (\w+)", "".join(block.text for block in CODE), re.MULTILINE)

    # The last one needs a broker: see tests/kafka.
    assert defined == ["serve_orders", "serve_and_fill", "serve_a_week", "read_orders", "serve_sink", "serve_topics"]


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


@each_row("name", replay.__all__)
def test_every_public_name_is_in_the_reference_and_documented(name: str) -> None:
    assert re.search(rf"`{name}\b|## {name}\n", REFERENCE)
    assert getattr(replay, name).__doc__


@each_row("name", ["add_source", "add_sink", "MemoryLog", "FileLog", "Ledger", "FileLedger", "Record"])
def test_the_signatures_of_the_reference_are_those_of_the_code(name: str) -> None:
    [shown] = re.findall(rf"`{name}\((.*?)\)`", REFERENCE.partition("\n## Bounds\n")[0])
    parameters = inspect.signature(getattr(replay, name)).parameters.values()
    said = [
        parameter.name if parameter.default is parameter.empty else f"{parameter.name}={parameter.default!r}"
        for parameter in parameters
        if parameter.name not in {"filesystem", "clock"}
    ]

    assert shown.replace("*, ", "").replace('"', "'").split(", ") == said


def test_the_methods_of_a_log_are_in_the_reference() -> None:
    section = REFERENCE.partition("## ReplayableLog")[2]
    public = {name for name in dir(ReplayableLog) if not name.startswith("_")}

    assert public - set(re.findall(r"`(?:await )?(\w+)[(`]", section)) == set()


def test_the_codes_of_the_errors_are_said() -> None:
    classes = [found for found in vars(replay).values() if isinstance(found, type) and issubclass(found, ReplayError)]
    coded = {cls.__name__: f"0x{cls.default_code:X}" for cls in classes if cls is not ReplayError}
    said = dict(re.findall(r"^\| `(\w+)` \| (0x\w+) \|", REFERENCE, re.MULTILINE))

    assert said == coded
    assert all(f"| {code} |" in REFERENCE for code in coded.values())


def test_the_formats_are_those_of_the_code() -> None:
    for mime in (
        element_metadata.POSITION,
        element_metadata.RECORD_METADATA,
        element_metadata.KEY,
        element_metadata.HEADERS,
        element_metadata.TIMESTAMP,
        element_metadata.GAP,
        element_metadata.PACK,
        element_metadata.ROWS,
        element_metadata.WRITE,
    ):
        assert f"| `{mime}` |" in REFERENCE
    tables = REFERENCE.partition("## Files")[2]
    header, record = (
        sum(int(size) for size in re.findall(r"^\| (\d+) \|", table, re.MULTILINE))
        for table in tables.split("a record")
    )
    assert (header, record) == (segment_records.PACKED.header, segment_records.PACKED.record.size)
    for layout in (segment_records.PACKED, segment_records.FORMER):
        assert f"0x{layout.magic:X}" in tables
        assert layout.name.decode() in tables
