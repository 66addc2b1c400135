"""The page on Spark has every option, as the table of the code has it."""

from __future__ import annotations

from rsocket_trio.spark.options import ROWS, USE_NAMES, Row, Use
from tests.blocks import page

HEAD = "| option | default | for | meaning |\n|---|---|---|---|\n"


def line(row: Row) -> str:
    """A row of the page."""
    uses = {Use.ANY: "all", Use.READ: "reads", Use.WRITE: "writes"}
    used = uses.get(row.use) or ", ".join(name for use, name in USE_NAMES.items() if use & row.use)
    return f"| `{row.name}` | {row.shown_default} | {used} | {row.meaning} |\n"


def test_the_page_has_every_option_as_the_table_has_it() -> None:
    table = HEAD + "".join(line(row) for _, row in ROWS.values())

    assert table in page("docs/reference/spark.md"), f"the table of options is now:\n{table}"
