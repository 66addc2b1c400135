"""Runs an attack against a server and judges the effects: memory, processor, descriptors, tasks, log and neighbours."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import attrs

from qa.attacks.line import Line
from qa.processes import MIB, PAGE, ROOT, descriptors
from rsocket_trio.transports.aeron.media_driver import remove_leftovers

PROBE = Path(__file__).with_name("probe.py")
SERVER = "qa.attacks.server"
TICKS = os.sysconf("SC_CLK_TCK")

CLEARED_IN = 2.0
"""Seconds after the offender's end in which everything must be as it was; the bar of a full run."""
PATIENCE = 30.0
"""Seconds that a quick run waits at least for whatever must come: it judges no times, on a machine that may be busy."""
MEDIAN, WORST = 0.030, 0.200
"""Seconds that the probe may wait, where the machine is ours alone."""
AGAIN = 0.10
"""Share of its growth that another, identical round may add."""
SETTLED = 2
"""Rounds of which the last may add more, if the next one then adds nothing."""
NOISE = 4 * MIB
"""Bytes of resident memory that mean nothing: arenas and heaps come in pieces, and keep some."""
IDLE = 0.25
"""Share of a core that a server may use once the offender is gone."""
PROBES = 6
"""Tasks that serve the probe."""
LONGEST_LINE = 1024 + 200
"""Bytes of a log line: a text of the peer's, and who it is."""


class Missed(AssertionError):
    """A bar was missed."""


def expect(holds: bool, text: str) -> None:
    """Raise ``Missed`` unless this holds."""
    if not holds:
        raise Missed(text[:LONGEST_LINE])


class Victim:
    """A server process, and what the system says of it."""

    def __init__(self, options: Mapping[str, object] | None = None, module: str = SERVER) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the process
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, json.dumps(options or {})],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        self.ports: dict[str, int] = {}

    def __enter__(self) -> Self:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            text = self.log
            self.__exit__(None, None, None)
            raise RuntimeError(f"the server did not start: {text}")
        for uri in json.loads(line):
            self.ports[uri.partition(":")[0]] = int(uri.rpartition("127.0.0.1:")[2].rstrip("/"))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):  # it closes all the same
                    pipe.close()
        if "aeron" in self.ports:
            remove_leftovers()  # a driver that was killed leaves its files in shared memory
        self._log.close()

    def order(self, do: str, **more: object) -> Any:
        """Have the server do something, and its answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps({"do": do, **more}) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        expect(bool(line), f"the server died: {self.log[-500:]}")
        return json.loads(line)

    @property
    def log(self) -> str:
        """Return the text that it has written to its standard error."""
        return os.pread(self._log.fileno(), 64 * MIB, 0).decode("utf-8", "replace")

    def resident(self) -> int:
        """Bytes of resident memory."""
        return int(self._read("statm").split()[1]) * PAGE

    def forget_peak(self) -> bool:
        """Have the system look for the peak from now on. Return whether it can."""
        try:
            Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")
        except OSError:
            return False
        return True

    def remembered_peak(self) -> int:
        """Bytes of the largest resident memory since then."""
        return 1024 * int(self._read("status").partition("VmHWM:")[2].split()[0])

    def cpu(self) -> float:
        """CPU seconds used so far."""
        fields = self._read("stat").rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def alive(self, *, objects: bool = True) -> dict[str, int]:
        """Counts of everything that must not stay. Objects take a while, in which the server does nothing else."""
        counts: dict[str, int] = self.order("look" if objects else "glance")
        counts["descriptors"] = descriptors(self.process.pid)
        return counts

    def _read(self, name: str) -> str:
        """Return a file of the system on this process. A process that is dead has neither memory nor a name."""
        try:
            text = Path(f"/proc/{self.process.pid}/{name}").read_text()
        except OSError:
            text = ""
        expect("VmHWM:" in text or (bool(text) and name != "status"), "the server died")
        return text


class Probe:
    """The well-behaved client beside an attack."""

    def __init__(self, port: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-I", str(PROBE), str(port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def end(self) -> dict[str, Any]:
        """Stop, and its figures."""
        figures: dict[str, Any] = json.loads(self.process.communicate(timeout=30)[0])
        return figures

    def kill(self) -> None:
        """End it in any case."""
        self.process.kill()
        self.process.communicate()


class Sampler:
    """The largest resident memory of a server: looked at every 5 ms, and as the system remembers it where it does."""

    def __init__(self, victim: Victim) -> None:
        self._victim = victim
        self._done = threading.Event()
        self._remembers = victim.forget_peak()
        self.peak = victim.resident()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._done.set()
        self._thread.join()
        if self._remembers:
            self.peak = max(self.peak, self._victim.remembered_peak())

    def _run(self) -> None:
        while not self._done.wait(0.005):
            with suppress(Missed):  # a server that died is noticed elsewhere
                self.peak = max(self.peak, self._victim.resident())


@attrs.frozen
class Size:
    """The size of an attack and its bounds: growth in MiB, seconds until it is over, CPU seconds of them."""

    count: int
    growth: float = attrs.field(kw_only=True)
    seconds: float = 30.0
    cpu: float | None = None
    limits: Mapping[str, object] = attrs.field(factory=dict)
    bar: float = 0.0
    """The bar of the attack's own figure."""


class Scene:
    """The tools of an attack. Everything that it opens is closed when it is over."""

    def __init__(self, victim: Victim, size: Size, *, full: bool) -> None:
        self.victim = victim
        self.size = size
        self.count = size.count
        self.full = full
        self.lines: list[Line] = []
        self._listener: socket.socket | None = None

    def line(self, *first: bytes, scheme: str = "tcp") -> Line:
        """A new connection that has sent this."""
        line = Line(self.victim.ports[scheme])
        self.lines.append(line)
        if first:
            line.pour(first)
        return line

    def open(self, count: int, *first: bytes, scheme: str = "tcp") -> list[Line]:
        """So many of them."""
        return [self.line(*first, scheme=scheme) for _ in range(count)]

    def called(self, what: str) -> Line:
        """Have the victim call us as a client: our end of its connection."""
        if self._listener is None:
            self._listener = socket.create_server(("127.0.0.1", 0))
            self._listener.settimeout(10)
        self.victim.order("call", uri=f"tcp://127.0.0.1:{self._listener.getsockname()[1]}", what=what)
        line = Line(self._listener.accept()[0])
        self.lines.append(line)
        return line

    def outcome(self, seconds: float = 10.0) -> str:
        """Return what became of the last call."""
        until = time.monotonic() + self.patience(seconds)
        while not (outcomes := self.victim.order("calls")) or not outcomes[-1]:
            expect(time.monotonic() < until, "the client waits for ever")
            time.sleep(0.02)
        return str(outcomes[-1])

    def work(self, name: str) -> int:
        """A count of handlers: ``started``, ``alive``, ``most``, ``pushes``."""
        return int(self.victim.order("work")[name])

    def wait_for(self, name: str, number: int, seconds: float) -> float:
        """Wait until a count of handlers is what it must be. Return the seconds that took."""
        started, seconds = time.monotonic(), self.patience(seconds)
        while (is_now := self.work(name)) != number:
            expect(time.monotonic() - started < seconds, f"{name} is {is_now} after {seconds} s and not {number}")
            time.sleep(0.01)
        return time.monotonic() - started

    def patience(self, seconds: float) -> float:
        """Return how long to wait for what a full run must see within so many seconds."""
        return seconds if self.full else max(seconds, PATIENCE)

    def expect_in_time(self, holds: bool, text: str) -> None:
        """Raise ``Missed`` unless this holds, which a time decides: in a full run only."""
        if self.full:
            expect(holds, text)

    def leave(self) -> None:
        """Close the connections of the offender and of its clients."""
        for line in self.lines:
            line.close()
        if self._listener is not None:
            self._listener.close()
            self.victim.order("hang up")


@attrs.frozen(kw_only=True)
class Attack:
    """An attack, and how the server must react. ``run`` returns the reaction in words, or raises."""

    id: str
    name: str
    run: Callable[[Scene], str]
    quick: Size
    full: Size
    options: Mapping[str, object] = attrs.field(factory=dict)
    rounds: int = 2
    """Of a full run. A second one shows that nothing stays of the first."""
    more_log: int = 0
    """Lines of log that it may cause beside one for each connection."""


ATTACKS: list[Attack] = []
"""Those of the modules that are imported, in the order of their text."""


def attack(
    id: str, quick: Size, full: Size | None = None, *, scheme: str = "tcp", **more: Any
) -> Callable[[Callable[[Scene], str]], Callable[[Scene], str]]:
    """Add the function below to the attacks under the ``id`` of its bar; its name is that of the attack.

    The server has the ``scheme`` beside ``tcp``.
    """
    options = {"schemes": list(dict.fromkeys(["tcp", scheme]))}

    def add(run: Callable[[Scene], str]) -> Callable[[Scene], str]:
        name = run.__name__.replace("_", "-")
        ATTACKS.append(
            Attack(id=id, name=name, run=run, quick=quick, full=full or quick, **{"options": options, **more})
        )
        return run

    return add


@attrs.define
class Result:
    """The figures of an attack, and the bars that it missed."""

    attack: Attack
    size: Size
    reaction: str = ""
    growth: int = 0
    idle: int = 0
    seconds: float = 0.0
    cpu: float = 0.0
    median: float = 0.0
    worst: float = 0.0
    probed: int = 0
    misses: list[str] = attrs.field(factory=list)

    @property
    def passed(self) -> bool:
        """Return whether every bar was met."""
        return not self.misses

    def miss(self, text: str) -> None:
        """Note a bar that was missed."""
        self.misses.append(text)


def run(
    attack: Attack, *, full: bool = False, module: str = SERVER, limits: Mapping[str, object] | None = None
) -> Result:
    """Make one attack on a fresh server. Times count in a full run only: the processor's and the probe's, too."""
    size = attack.full if full else attack.quick
    result = Result(attack, size)
    options = {**attack.options, "limits": {**size.limits, **(limits or {})}}
    with Victim(options, module) as victim:
        try:
            _judge(victim, result, full=full)
        except Missed as miss:
            result.miss(str(miss))
    return result


def _judge(victim: Victim, result: Result, *, full: bool) -> None:
    attack, size = result.attack, result.size
    Probe(victim.ports["tcp"]).end()  # what the first connection ever costs is not the attack's
    before = victim.alive()
    connections = 1
    turn, rounds = 0, attack.rounds if full else 1
    while turn < rounds:
        scene = Scene(victim, size, full=full)
        with _probing(victim, result, full=full):
            more = _attack_once(scene, result, first=turn == 0)
            _wait_until_cleared(scene, before, result, objects=False)
        _wait_until_cleared(scene, before, result, objects=True)
        connections += len(scene.lines) + 1
        turn += 1
        if more and turn == SETTLED:
            rounds += 1  # a heap that was laid out otherwise grows no further; a leak does
        elif more:
            result.miss(f"round {turn} grew by {more / MIB:.1f} MiB more")
        if result.misses:
            break
    _check_growth(size, result)
    if full:
        _check_times(size, result)
        _check_idle(victim, result)
    _check_log(victim.log, connections + attack.more_log, result)


def _attack_once(scene: Scene, result: Result, *, first: bool) -> int:
    """Make one round. Return the bytes of memory that it took beyond the rounds before, 0 for what means nothing."""
    victim = scene.victim
    idle, cpu, started = victim.resident(), victim.cpu(), time.monotonic()
    reaction = "-"
    with Sampler(victim) as sampler:
        try:
            reaction = result.attack.run(scene)
        except Missed as miss:
            result.miss(str(miss))
        finally:
            seconds = time.monotonic() - started
            scene.leave()
    growth = sampler.peak - idle
    if first:
        result.reaction, result.growth, result.idle = reaction, growth, idle
        result.seconds, result.cpu = seconds, victim.cpu() - cpu
        return 0
    more = sampler.peak - result.idle - result.growth
    if more <= max(result.growth, 0) * AGAIN + NOISE:
        return 0
    result.growth += more
    return more


@contextmanager
def _probing(victim: Victim, result: Result, *, full: bool) -> Iterator[None]:
    probe = Probe(victim.ports["tcp"])
    try:
        yield
        figures = probe.end()
    finally:
        probe.kill()
    result.probed += figures["count"]
    result.median = max(result.median, figures["median"])
    result.worst = max(result.worst, figures["worst"])
    if figures["failure"]:
        result.miss(f"the probe failed: {figures['failure']}")
    if full and figures["median"] > MEDIAN:
        result.miss(f"the probe's median was {figures['median'] * 1000:.0f} ms")
    if full and figures["worst"] > WORST:
        result.miss(f"the probe's worst was {figures['worst'] * 1000:.0f} ms")


def _wait_until_cleared(scene: Scene, before: dict[str, int], result: Result, *, objects: bool) -> None:
    """Descriptors, tasks, streams and sessions are back to what they were; the probe's may still be there."""
    probe = PROBES * (not objects)
    seconds = scene.patience(CLEARED_IN)
    until = time.monotonic() + seconds
    while left := {
        name: count
        for name, count in scene.victim.alive(objects=objects).items()
        if count > before.get(name, 0) + probe
    }:
        if time.monotonic() > until:
            result.miss(f"left after {seconds:g} s: {left}, and before it was {before}")
            return
        time.sleep(0.05)


def _check_growth(size: Size, result: Result) -> None:
    if result.growth > size.growth * MIB:
        result.miss(f"grew by {result.growth / MIB:.1f} MiB, and not at most {size.growth:g}")


def _check_times(size: Size, result: Result) -> None:
    if result.seconds > size.seconds:
        result.miss(f"took {result.seconds:.1f} s, and not at most {size.seconds:g}")
    most = size.seconds if size.cpu is None else size.cpu
    if result.cpu > most:
        result.miss(f"used {result.cpu:.1f} s of CPU, and not at most {most:g}")


def _check_idle(victim: Victim, result: Result) -> None:
    """Nothing goes on spinning once the offender is gone."""
    used, window = victim.cpu(), 0.1
    time.sleep(window)
    if victim.cpu() - used > window * IDLE + 1 / TICKS:
        result.miss(f"used {victim.cpu() - used:.2f} s of CPU in {window} s after the attack")


def _check_log(text: str, allowed: int, result: Result) -> None:
    """No traceback; lines short and printable; at most one warning for each connection that offended."""
    if "Traceback" in text:
        result.miss(f"a traceback in the log: {text[text.index('Traceback') :][:2000]}")
        return
    lines = text.splitlines()
    warnings = [line for line in lines if not line.startswith("INFO ")]
    if len(warnings) > allowed:
        result.miss(f"{len(warnings)} lines of log, and not at most {allowed}")
    longest = max(map(len, lines), default=0)
    if longest > LONGEST_LINE:
        result.miss(f"a line of {longest} characters in the log")
    if re.search(r"[^\n -~]", text) and not all(char.isprintable() or char == "\n" for char in text):
        result.miss("control characters in the log")


HEADER = """| id | attack | reaction | growth, MiB | bound | probe median / worst, ms | s | CPU s | |
|---|---|---|---|---|---|---|---|---|"""


def row(result: Result) -> str:
    """One line of a table of Markdown."""
    return (
        f"| {result.attack.id} | {result.attack.name} | {result.reaction} | {max(result.growth, 0) / MIB:.1f} | "
        f"{result.size.growth:g} | {result.median * 1000:.1f} / {result.worst * 1000:.1f} | {result.seconds:.1f} | "
        f"{result.cpu:.1f} | {'**missed**: ' + '; '.join(result.misses) if result.misses else 'pass'} |"
    )
