"""What the page on captures says is so: its code runs, and its tables are those of the code."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
import trio

from rsocket_trio import Payload, Responder, open_connection
from rsocket_trio.capture.schema import TABLES
from tests.blocks import page, snippets
from tests.capture.reading import read
from tests.each_row import each_row
from tests.serving import running_server

PAGE = page("docs/howto/capture.md")
REFERENCE = page("docs/reference/capture.md")


@each_row("table", TABLES)
def test_the_tables_of_columns_are_those_of_the_code(table: str) -> None:
    section = REFERENCE.partition(f"### {table}\n")[2].partition("\n#")[0]
    documented = re.findall(r"^\| `(\w+)` \| (\S+) \| .+ \|$", section, re.MULTILINE)

    assert documented == [(column.name, column.type) for column in TABLES[table]]


async def test_the_code_of_the_page_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    responder = Responder()

    @responder.request_response("shout")
    def shout(request: Payload) -> str:
        return request.text.upper()

    printed: list[object] = []
    with trio.fail_after(60):
        async with running_server(responder) as uri:
            names: dict[str, Any] = {"uri": uri, "open_connection": open_connection, "trio": trio}
            names["print"] = lambda *words: printed.append(words)
            for block in snippets(PAGE):
                code = compile(block.text, "docs/howto/capture.md", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
                result = eval(code, names)
                if result is not None:
                    await result

    assert printed == [(0, None)]
    for directory in "capture", "shared":
        assert [row["route"] for row in read(tmp_path / directory, "interactions")] == ["shout"]
