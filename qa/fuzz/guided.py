"""Inputs that coverage leads to: every target in a process of its own, from the vectors and what is kept."""

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

from qa.fuzz import corpus
from qa.fuzz.decoders import GUIDED, TARGETS

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
        for number, data in enumerate((*TARGETS[name].seeds, *corpus.kept(name))):
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
            print(f"    {corpus.keep(name, [*corpus.kept(name), *reached_by])} kept", flush=True)
    return clean


def fuzzer(name: str, *words: str) -> subprocess.CompletedProcess[str]:
    """One run of libFuzzer."""
    command = [sys.executable, "-m", "qa.fuzz.guided_target", name, *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, errors="replace", check=False)
