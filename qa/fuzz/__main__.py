"""The long runs: ``python -m qa.fuzz --help`` says which there are. The suite has a short one of each.

Each prints its seed; the same seed and the same number give the same inputs. The exit code says whether anything was
found.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from typing import Final


def decoders(options: argparse.Namespace) -> bool:
    from qa.fuzz.decoders import TARGETS, fuzz_all

    return fuzz_all(options.target or TARGETS, options.runs, options.seed)


def guided(options: argparse.Namespace) -> bool:
    from qa.fuzz.guided import guide_all

    return guide_all(options.target, options.runs, options.seed, keep=options.keep)


def conversations(options: argparse.Namespace) -> bool:
    from qa.fuzz.conversations import converse_all

    return converse_all(options.runs, options.seed)


def server(options: argparse.Namespace) -> bool:
    from qa.fuzz.server import besiege

    return besiege(options.frames, options.seed)


COMMANDS: Final[dict[str, tuple[Callable[[argparse.Namespace], bool], str]]] = {
    "decoders": (decoders, "mutated bytes for every decoder, so many each"),
    "guided": (guided, "inputs that coverage led to, so many in sum (needs the extra `fuzz`)"),
    "conversations": (conversations, "mutated conversations with sessions without I/O"),
    "server": (server, "mutated traffic against a live server of all dialects"),
}


def arguments(words: list[str]) -> argparse.Namespace:
    """Return the options of a command line."""
    parser = argparse.ArgumentParser(prog="python -m qa.fuzz", description="Long fuzzing runs.")
    commands = parser.add_subparsers(dest="command", required=True)
    parsers = {name: commands.add_parser(name, help=text) for name, (_, text) in COMMANDS.items()}
    for name in COMMANDS:
        parsers[name].add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "big"))
    for name, runs in (("decoders", 2_000_000), ("guided", 5_000_000), ("conversations", 200_000)):
        parsers[name].add_argument("--runs", type=int, default=runs)
    for name in ("decoders", "guided"):
        parsers[name].add_argument("--target", action="append", help="one of the targets; all without it")
    parsers["guided"].add_argument("--keep", action="store_true", help="add what was reached to the corpus")
    parsers["server"].add_argument("--frames", type=int, default=200_000)
    return parser.parse_args(words)


def main(words: list[str]) -> int:
    """Run one command."""
    options = arguments(words)
    print(f"seed {options.seed}", flush=True)
    return 0 if COMMANDS[options.command][0](options) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
