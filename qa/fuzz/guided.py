"""Inputs that coverage leads to: every target in a process of its own, from the vectors and what is kept.

What is kept is text: a file for each target, a line of hexadecimal digits for each input.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from qa.fuzz.decoders import GUIDED, TARGETS

FOLDER: Final = Path(__file__).parent / "corpus"
MOST: Final = 30
"""Inputs that are kept for one target: the shortest, each of which reached something that none before it did."""
LONGEST: Final = 300
"""Bytes of an input that is kept."""
ROOT: Final = Path(__file__).parents[2]
BOUNDS: Final = ("-max_len=512", "-timeout=1", "-rss_limit_mb=512", "-verbosity=1")
"""No input takes a second, and no run 512 MiB."""


def guide_all(names: Iterable[str] | None, runs: int, seed: int, *, keep: bool) -> bool:
    """Share so many runs among these targets, or all. Return whether nothing was found."""
    if importlib.util.find_spec("atheris") is None:
        print("atheris is not installed: pip install --editable '.[fuzz]'", file=sys.stderr)
        return False
    chosen = list(names or GUIDED)
    results = [guide(name, runs // len(chosen), seed, keep=keep) for name in chosen]
    return all(results)


def guide(name: str, runs: int, seed: int, *, keep: bool) -> bool:
    """Run one target, and print the result. Return whether nothing was found."""
    start = time.perf_counter()
    with TemporaryDirectory() as place:
        found, broken = Path(place) / "found", Path(place) / "broken"
        found.mkdir()
        broken.mkdir()
        for number, data in enumerate((*TARGETS[name].seeds, *kept(name))):
            (found / f"seed{number}").write_bytes(data)
        options = (*BOUNDS, f"-artifact_prefix={broken}/", f"-seed={seed % 2**31 or 1}")
        run = fuzzer(name, f"-runs={runs}", *options, str(found))
        clean = run.returncode == 0
        reached = re.findall(r"cov: (\d+) ft: (\d+)", run.stderr) or [("?", "?")]
        print(
            f"{name:20} {runs:>10,} runs  {time.perf_counter() - start:7.1f} s  "
            f"{reached[-1][0]} edges, {len(list(found.iterdir()))} inputs  {'nothing found' if clean else 'FOUND'}",
            flush=True,
        )
        for path in broken.iterdir():
            print(f"    {path.name}: {path.read_bytes().hex()}", flush=True)
        if not clean:
            print(run.stderr[-4000:], flush=True)
        if keep:
            reached_by = [path.read_bytes() for path in found.iterdir() if not path.name.startswith("seed")]
            print(f"    {keep_inputs(name, [*kept(name), *reached_by])} kept", flush=True)
    return clean


def fuzzer(name: str, *words: str) -> subprocess.CompletedProcess[str]:
    """One run of libFuzzer."""
    command = [sys.executable, "-m", "qa.fuzz.guided_target", name, *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, errors="replace", check=False)


def kept(target: str) -> list[bytes]:
    """Return the inputs that are kept for this target."""
    path = FOLDER / f"{target}.txt"
    return [bytes.fromhex(line) for line in path.read_text("ascii").splitlines()] if path.exists() else []


def keep_inputs(target: str, inputs: Iterable[bytes]) -> int:
    """Keep these inputs and no others; how many they are."""
    chosen = sorted({data for data in inputs if len(data) <= LONGEST}, key=lambda data: (len(data), data))[:MOST]
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{target}.txt").write_text("".join(f"{data.hex()}\n" for data in chosen), "ascii")
    return len(chosen)
