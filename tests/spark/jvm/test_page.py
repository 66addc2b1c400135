"""The code of the page on Spark runs, and shows what it should."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.blocks import ROOT, commands, opening, page, snippets, with_free_ports
from tests.spark.jvm.servers import SourceServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PATIENCE = 60.0
PAGE = with_free_ports(page("docs/howto/spark.md"))
FILES, SESSION = opening(PAGE)
SNIPPETS = snippets(PAGE)


def wait_for(server: str) -> None:
    """Until the server of the page, which says nothing, takes connections."""
    port = re.search(r"127\.0\.0\.1:(\d+)", server)
    assert port is not None
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            socket.create_connection(("127.0.0.1", int(port[1]))).close()
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        else:
            return


def test_the_first_rows_come(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = tmp_path / "server.py"
    server.write_text(FILES["server.py"].text)
    with subprocess.Popen([sys.executable, server], cwd=ROOT) as process:
        try:
            wait_for(FILES["server.py"].text)
            exec(compile(FILES["job.py"].text, "job.py", "exec"), {})  # getOrCreate finds the session of the tests
        finally:
            process.kill()

    assert capsys.readouterr().out.endswith(dict(commands(SESSION))["python job.py"])


@pytest.mark.parametrize("block", SNIPPETS, ids=lambda block: block.heading)
def test_a_snippet_works(
    block: Any, spark: SparkSession, start_server: Callable[..., SourceServer], tmp_path: Path
) -> None:
    server = start_server(1000, 1000)
    text = block.text.replace('"orders"', '"log"')
    names: dict[str, Any] = {"spark": spark, "uri": server.uri, "folder": str(tmp_path / "checkpoint")}

    exec(compile(text, "docs/howto/spark.md", "exec"), names)

    if "ticks" in names:
        assert names["ticks"].count() == 100
    elif "with_headers" in names:
        assert names["with_headers"].count() == 2000
    elif "create_view" in names:
        assert spark.table("all_orders").count() == 2000
        spark.catalog.dropTempView("all_orders")
    elif "readings" in names:
        assert names["readings"].isStreaming
    elif "progress" in names:
        spark.streams.removeListener(names["progress"])
        assert names["progress"].queries() == []
    else:
        assert names["query"].exception() is None
        assert sum(one["numInputRows"] for one in names["query"].recentProgress) == 2000
