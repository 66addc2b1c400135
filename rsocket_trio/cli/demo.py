"""The command ``demo``: runs the chat example of ``examples/``, which is copied into a wheel."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import click

from rsocket_trio.cli.help_page import Command

COPY = Path(__file__).with_name("_chat_example.py")
CHECKOUT = Path(__file__).parents[2] / "examples" / "chat.py"
NAME = "rsocket_trio.cli._chat_example"


@click.command("demo", cls=Command, examples=("demo",))
@click.pass_context
def command(ctx: click.Context, /) -> None:
    """Watch a chat: a server and three clients, over real frames."""
    spec = importlib.util.spec_from_file_location(NAME, COPY if COPY.is_file() else CHECKOUT)
    assert spec is not None
    assert spec.loader is not None
    # In sys.modules classes look for the names in their annotations.
    sys.modules[NAME] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    ctx.exit(module.main([]))
