"""Checks every Python that Spark runs for the source: ``python -m rsocket_trio.spark.check [--master URL]``.

Spark starts Python in four places: the driver itself, the look-up of sources, their planner, and the executors. Each
may be another interpreter, and each needs this package. The probes are pickled by value and use the standard library
alone, so that they run where the package is missing.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs
import pyspark
from py4j.protocol import Py4JError
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from rsocket_trio.spark import JavaNotFoundError, ensure_java
from rsocket_trio.spark.hosting import LEAST

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

FINE, LACKING, USAGE, NO_CLUSTER = 0, 1, 2, 3
"""Exit codes."""
NEEDED: Final = ("rsocket-trio", "pyspark", "pyarrow", "trio", "attrs")
"""The packages that every interpreter needs, in the order of the table."""
TASKS: Final = 16
"""Tasks that look around on the executors, at least."""
PATIENCE: Final = 120.0
"""Seconds that executors get to answer, unless ``--timeout`` says otherwise."""
CLUES: Final = (
    re.compile(r"Cannot run program \"(?P<what>[^\"]+)\""),
    re.compile(r"Python in worker has different version: (?P<what>.+?)\.?\s+(?:than|Please)"),
    re.compile(r"PYTHON_VERSION_MISMATCH\]\s*(?P<what>[^\n]+)"),
    re.compile(r"ModuleNotFoundError: (?P<what>No module named '[^']+')"),
)
"""The parts of Spark's errors that say why an interpreter did not answer."""


def facts() -> str:
    """Return as JSON what the interpreter that runs this is, and which packages it has. Needs the standard library."""
    import importlib.util
    import json
    import platform
    import socket
    import sys
    from importlib.metadata import PackageNotFoundError, version

    packages = {}
    for name in ("rsocket-trio", "pyspark", "pyarrow", "trio", "attrs"):
        module = "attr" if name == "attrs" else name.replace("-", "_")
        if importlib.util.find_spec(module) is None:
            continue
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            # On the path without metadata: a checkout, or Spark's own zip file.
            packages[name] = getattr(sys.modules.get(module), "__version__", "?")
    return json.dumps(
        {
            "host": socket.gethostname(),
            "python": sys.executable,
            "version": platform.python_version(),
            "packages": packages,
            "is_found": importlib.util.find_spec("pyspark_rsocket") is not None,
        }
    )


class ProbeReader(DataSourceReader):
    """Reads what the interpreters of executors are."""

    def partitions(self) -> list[InputPartition]:
        """Return a task for each place that may run one."""
        return [InputPartition(number) for number in range(16)]

    def read(self, partition: InputPartition) -> Iterator[tuple[str]]:
        """Yield what this interpreter is."""
        yield (facts(),)


class Probe(DataSource):
    """A source whose planner writes what it is into the comment of a column."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format``."""
        return "rsocket_probe"

    def schema(self) -> str:
        """Return the column, with what the interpreter is in hexadecimal digits."""
        return f"said STRING COMMENT '{facts().encode().hex()}'"

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of executors."""
        return ProbeReader()


@attrs.frozen
class Interpreter:
    """One interpreter: the place where Spark runs it, and ``lacks``, each in a few words."""

    place: str
    host: str = "?"
    python: str = "?"
    version: str = "?"
    packages: Mapping[str, str] = attrs.field(factory=dict, hash=False)
    lacks: tuple[str, ...] = ()


def judged(place: str, said: str, driver: Interpreter | None = None) -> Interpreter:
    """Return the interpreter at a place that said ``said``, with what it lacks beside the ``driver``."""
    found = json.loads(said)
    packages: dict[str, str] = found["packages"]
    lacks = [name for name in NEEDED if name not in packages]
    for name, least in LEAST.items():
        numbers = re.match(r"(\d+)\.(\d+)", packages.get(name, ""))
        if numbers is not None and (int(numbers[1]), int(numbers[2])) < least:
            lacks.append(f"{name} {least[0]}.{least[1]} or newer")
    if driver is not None:
        if minor(found["version"]) != minor(driver.version):
            lacks.append(f"Python {minor(driver.version)}, as at the driver")
        ours, theirs = driver.packages.get("rsocket-trio"), packages.get("rsocket-trio")
        if theirs is not None and "?" not in (ours, theirs) and ours != theirs:
            lacks.append(f"rsocket-trio {ours}, as at the driver")
    if place == "look-up" and "rsocket-trio" in packages and not found["is_found"]:
        lacks.append("pyspark_rsocket, by which Spark finds rsocket")
    return Interpreter(place, found["host"], found["python"], found["version"], packages, tuple(lacks))


def minor(version: str) -> str:
    """Return the first two numbers of a version."""
    return ".".join(version.split(".")[:2])


def silent(place: str, error: Exception, python: str = "?") -> Interpreter:
    """Return an interpreter that did not answer, with Spark's reason."""
    text = str(error)
    for clue in CLUES:
        if found := clue.search(text):
            return Interpreter(place, python=python, lacks=(f"an answer: {found['what'].strip()}",))
    first = next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
    return Interpreter(place, python=python, lacks=(f"an answer: {first[:160]}",))


@cache
def pickle_by_value() -> None:
    """Have the probes travel whole, and not by the name of a module that may be missing where they arrive."""
    if __name__ != "__main__":
        cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]  # it has no types


def check(spark: SparkSession, timeout: float = PATIENCE) -> list[Interpreter]:
    """Return the interpreters of the session ``spark``, in the order in which Spark comes to them.

    ``timeout`` is the time in seconds that executors get to answer.
    """
    pickle_by_value()
    driver = judged("driver", facts())
    context = getattr(spark, "_sc", None)
    if context is None:
        return [driver, *remote(spark, driver)]
    # A source that is found by name runs the first in all its places; one that is registered, the second.
    by_name = os.environ.get("PYSPARK_DRIVER_PYTHON") or os.environ.get("PYSPARK_PYTHON") or "python3"
    registered = str(context.pythonExec)
    found = [driver, looked_up(by_name, driver)]
    for python in dict.fromkeys((by_name, registered)):
        place = "" if python == by_name else " of register()"
        context.pythonExec = python
        try:
            found.append(planner(spark, f"planner{place}", driver, python))
            found += executors(context, f"executor{place}", driver, timeout)
        finally:
            context.pythonExec = registered
    return found


def remote(spark: SparkSession, driver: Interpreter) -> list[Interpreter]:
    """Return the interpreters behind a server of Spark Connect, which looks sources up by itself."""
    found = [planner(spark, "planner", driver)]
    try:
        spark.read.format("rsocket").load()
    except PySparkException as error:
        # A source that is found complains that it got no options.
        lost = () if "'path' is missing" in str(error) else ("pyspark_rsocket, by which Spark finds rsocket",)
        found.insert(0, attrs.evolve(found[0], place="look-up", lacks=(*found[0].lacks, *lost)))
    try:
        said = spark.read.format(Probe.name()).load().collect()
    except PySparkException as error:
        return [*found, silent("executor", error)]
    return found + distinct("executor", [row[0] for row in said], driver)


def looked_up(python: str, driver: Interpreter) -> Interpreter:
    """Return the interpreter that looks sources up, started as Spark starts it."""
    # As Spark does, which finds its own package beside its JVM.
    home = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)
    zips = sorted(str(one) for one in (home / "python" / "lib").glob("*.zip"))
    path = os.pathsep.join(filter(None, [*zips, os.environ.get("PYTHONPATH")]))
    source = f"from __future__ import annotations\n{inspect.getsource(facts)}\nprint(facts())"
    try:
        done = subprocess.run(
            [python, "-c", source],
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=True,
        )
    except OSError:
        return Interpreter("look-up", python=python, lacks=("a Python of this path",))
    except subprocess.SubprocessError as error:
        return silent("look-up", error, python)
    return judged("look-up", done.stdout.splitlines()[-1], driver)


def planner(spark: SparkSession, place: str, driver: Interpreter, python: str = "?") -> Interpreter:
    """Return the interpreter that plans reads and writes of sources."""
    try:
        spark.dataSource.register(Probe)
        field = spark.read.format(Probe.name()).load().schema.fields[0]
    except (PySparkException, Py4JError) as error:
        return silent(place, error, python)
    return judged(place, bytes.fromhex(field.metadata["comment"]).decode(), driver)


def executors(context: Any, place: str, driver: Interpreter, timeout: float) -> list[Interpreter]:
    """Return the interpreters that run tasks: those of one host and path are one."""
    tasks = max(TASKS, 2 * context.defaultParallelism)

    def look(_: int) -> str:
        return facts()

    late = threading.Timer(timeout, context.cancelAllJobs)
    late.start()
    try:
        said = context.parallelize(range(tasks), tasks).map(look).collect()
    except (PySparkException, Py4JError) as error:
        if late.finished.is_set():
            return [Interpreter(place, lacks=(f"an answer within {timeout:g} s: does the cluster have free cores?",))]
        return [silent(place, error, str(context.pythonExec))]
    finally:
        late.cancel()
    return distinct(place, said, driver)


def distinct(place: str, said: Sequence[str], driver: Interpreter) -> list[Interpreter]:
    """Return each interpreter once, by host and path."""
    return [judged(place, one, driver) for one in sorted(set(said))]


def table(found: Sequence[Interpreter]) -> str:
    """Return the interpreters as lines of a table."""
    rows: list[tuple[str, ...]] = [("interpreter", "host", "path", "python", *NEEDED, "lacks")]
    for one in found:
        packages = (one.packages.get(name, "-") for name in NEEDED)
        rows.append((one.place, one.host, one.python, one.version, *packages, "; ".join(one.lacks) or "-"))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def session(master: str | None, settings: Sequence[str]) -> SparkSession:
    """Return a session of the master, with settings ``name=value``. Raise ``JavaNotFoundError`` without a Java."""
    builder: Any = SparkSession.builder.appName("rsocket_trio.spark.check")
    for setting in settings:
        name, _, value = setting.partition("=")
        builder = builder.config(name, value)
    if master is not None and master.startswith("sc://"):
        return builder.remote(master).getOrCreate()  # type: ignore[no-any-return]  # the builder is of either kind
    ensure_java()
    # Every executor is to be there when the tasks are given out.
    builder = builder.config("spark.scheduler.minRegisteredResourcesRatio", "1.0")
    builder = builder.config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
    return (builder if master is None else builder.master(master)).getOrCreate()  # type: ignore[no-any-return]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table for the command line ``arguments``. Return 0, or 1 where an interpreter lacks something."""
    parser = argparse.ArgumentParser(prog="python -m rsocket_trio.spark.check", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--master", metavar="URL", help="the cluster: spark://, yarn, k8s://, local[2], or sc:// of Connect"
    )
    parser.add_argument("--conf", action="append", default=[], metavar="NAME=VALUE", help="a setting of Spark")
    parser.add_argument("--timeout", type=float, default=PATIENCE, metavar="SECONDS", help="for the executors")
    given = parser.parse_args(arguments)
    if any("=" not in setting for setting in given.conf):
        parser.error("--conf takes NAME=VALUE")
    try:
        spark = session(given.master, given.conf)
    except JavaNotFoundError as error:
        print(error, file=sys.stderr)
        return LACKING
    except (PySparkException, Py4JError, RuntimeError) as error:
        print(f"no session at {given.master}: {silent('driver', error).lacks[0]}", file=sys.stderr)
        return NO_CLUSTER
    try:
        found = check(spark, given.timeout)
    finally:
        spark.stop()
    print(table(found))
    return LACKING if any(one.lacks for one in found) else FINE


if __name__ == "__main__":
    sys.exit(main())
