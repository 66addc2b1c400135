"""One target in a process of its own, where coverage leads from input to input: ``guided`` starts it.

The rest of the command line is libFuzzer's. It never returns: libFuzzer ends the process.
"""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["rsocket_trio"]):
    from qa.fuzz.decoders import TARGETS


def main(name: str, words: list[str]) -> None:
    """Run this target."""
    target = TARGETS[name]
    atheris.Setup([name, *words], target.judge)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
