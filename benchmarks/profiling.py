"""Profiles of a workload: ``python -m benchmarks.profiling WORKLOAD [trio|floor|...] [--repeat N] [--lines N]``.

Client and server run as they always do. At each tick of the kernel that finds them at work (every 4 ms on many systems)
the stack of Python's functions is counted, and whether the kernel was at work for it. A signal comes between two
instructions of Python: what a function of C takes is counted for the function that called it. Trio wakes once for each
signal, which costs about a hundredth.
"""

from __future__ import annotations

import argparse
import importlib
import resource
import runpy
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from types import FrameType

import attrs

UNDER = "--under"
"""Leads the arguments of a process that is sampled: the file to write, the module, and the module's arguments."""
SUFFIX = ".folded"
"""Of files with a line for each stack, outermost function first, and how often it was found: flame graphs are made of
them."""
INTERVAL = 0.001
"""Seconds of CPU between two samples; the kernel's tick makes it more."""
KERNEL, TRIO, OURS, PROGRAM, REST = PARTS = ("kernel", "Trio", "rsocket_trio", "program", "rest")
"""The program is what a user writes: handlers, and the loops of the benchmark's client; at the floor it is everything
but Trio."""
IN_KERNEL = "[kernel]"
"""The innermost entry of a stack, if the kernel was at work."""
OF_PACKAGE = {
    "trio": TRIO,
    "outcome": TRIO,
    "sortedcontainers": TRIO,
    "rsocket_trio": OURS,
    "benchmarks": PROGRAM,
    "__main__": PROGRAM,
}
"""The part that a package belongs to. Functions of others are counted for the nearest caller that has one."""


class Sampler:
    """Counts the stacks of this process."""

    def __init__(self) -> None:
        self.stacks: Counter[tuple[str, ...]] = Counter()
        self._user = self._system = 0.0

    def start(self) -> None:
        """Begin. The main thread has to call this."""
        signal.signal(signal.SIGPROF, self._take)
        signal.setitimer(signal.ITIMER_PROF, INTERVAL, INTERVAL)

    def stop(self) -> None:
        """End."""
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, signal.SIG_IGN)

    def _take(self, number: int, frame: FrameType | None) -> None:
        if frame is not None and frame.f_code is Sampler._take.__code__:
            return  # a tick that came while the last one was counted
        used = resource.getrusage(resource.RUSAGE_SELF)
        user, system = used.ru_utime - self._user, used.ru_stime - self._system
        self._user, self._system = used.ru_utime, used.ru_stime
        names = [IN_KERNEL] if system > user else []
        while frame is not None:
            names.append(f"{frame.f_globals.get('__name__', '?')}:{frame.f_code.co_qualname}")
            frame = frame.f_back
        self.stacks[tuple(reversed(names))] += 1

    def write(self, file: Path) -> None:
        """Write the stacks, the most frequent first."""
        file.write_text("".join(f"{';'.join(stack)} {count}\n" for stack, count in self.stacks.most_common()))


@attrs.frozen
class Profile:
    """Samples by part, and by part and the innermost function of the part."""

    parts: Counter[str]
    functions: Counter[tuple[str, str]]

    @property
    def samples(self) -> int:
        """Return the number of samples."""
        return self.parts.total()


def read(files: Iterable[Path]) -> Profile:
    """Return the profile of all these files together."""
    profile = Profile(Counter(), Counter())
    for file in files:
        for line in file.read_text().splitlines():
            stack, _, count = line.rpartition(" ")
            part, function = place(stack.split(";"))
            profile.parts[part] += int(count)
            profile.functions[part, function] += int(count)
    return profile


def place(stack: list[str]) -> tuple[str, str]:
    """Return the part that a stack is counted for, and the innermost function that belongs to one."""
    is_kernel = stack[-1] == IN_KERNEL
    for name in reversed(stack):
        if (part := OF_PACKAGE.get(name.split(":")[0].split(".")[0])) is not None:
            return KERNEL if is_kernel else part, name
    return KERNEL if is_kernel else REST, stack[-1]


def sampled(command: list[str], file: Path) -> list[str]:
    """Return the command that runs a module of Python under the sampler. It writes the file when it ends."""
    python, flag, *module = command
    assert flag == "-m", command
    return [python, "-m", "benchmarks.profiling", UNDER, str(file), *module]


def run_under(file: str, module: str, *arguments: str) -> None:
    """Run a peer as ``python -m`` would, and write its stacks, without what its imports took."""
    importlib.import_module(module)
    sys.argv = [module, *arguments]
    sampler = Sampler()
    sampler.start()
    try:
        runpy.run_module(module, run_name="__main__")
    finally:
        sampler.stop()
        sampler.write(Path(file))


def main() -> None:
    """Print the parts and the functions that took most."""
    if sys.argv[1:2] == [UNDER]:
        run_under(*sys.argv[2:])
        return
    from benchmarks import harness
    from benchmarks.libraries import BY_LIBRARY
    from benchmarks.workloads import WORKLOADS

    parser = argparse.ArgumentParser(prog="python -m benchmarks.profiling", description="where a workload's time goes")
    parser.add_argument("workload", choices=[workload.name for workload in WORKLOADS])
    pythons = [name for name, library in BY_LIBRARY.items() if library.runtime == "python"]
    parser.add_argument("library", nargs="?", default="trio", choices=pythons)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--lines", type=int, default=25)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(asked.repeat):
            harness.run(asked.library, asked.workload, profile=Path(folder) / str(number))
        for role in ("client", "server"):
            profile = read(Path(folder).glob(f"*-{role}{SUFFIX}"))
            parts = ", ".join(f"{part} {count / profile.samples:.0%}" for part, count in profile.parts.most_common())
            print(f"==== {role}: {profile.samples} samples; {parts}")
            for (part, function), count in profile.functions.most_common(asked.lines):
                print(f"{count / profile.samples:6.1%}  {part:13} {function}")


if __name__ == "__main__":
    main()
