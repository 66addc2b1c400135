"""Checks every Python that Spark runs for the source: ``python -m rsocket_trio.spark.check [--master URL]``.

Spark starts Python in four places: the driver itself, the look-up of sources, their planner, and the executors. Each
may be another interpreter, and each needs this package. The probe is pickled by value and uses the standard library
alone, so that it runs where the package is missing.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import attrs
from py4j.protocol import Py4JError
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from rsocket_trio.spark import JavaNotFoundError, ensure_java
from rsocket_trio.spark.hosting import LEAST, version_numbers

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

FINE, LACKING, USAGE, NO_CLUSTER = 0, 1, 2, 3
"""Exit codes."""
NEEDED: Final = ("rsocket-trio", "pyspark", "pyarrow", "trio", "attrs")
"""The packages that every interpreter needs, in the order of the table."""
TASKS: Final = 16
"""Tasks that look around on the executors, at least."""
EXECUTOR_TIMEOUT: Final = 120.0
"""Seconds that executors get to answer, unless ``--timeout`` says otherwise."""
CLUE: Final = re.compile(r"Cannot run program \"[^\"]+\"|\[PYTHON_VERSION_MISMATCH\][^\n]+|No module named '[^']+'")
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
        return f"facts STRING COMMENT '{facts().encode().hex()}'"

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
    """Return the interpreter at a place whose ``facts`` are ``said``, with what it lacks beside the ``driver``."""
    found = Interpreter(place, **json.loads(said))
    lacks = [name for name in NEEDED if name not in found.packages]
    for name, least in LEAST.items():
        numbers = version_numbers(found.packages.get(name, ""))
        if numbers is not None and numbers < least:
            lacks.append(f"{name} {least[0]}.{least[1]} or newer")
    if driver is not None:
        if version_numbers(found.version) != version_numbers(driver.version):
            lacks.append("Python {}.{}, as at the driver".format(*driver.version.split(".")))
        ours, theirs = driver.packages.get("rsocket-trio"), found.packages.get("rsocket-trio", "?")
        if "?" not in (ours, theirs) and ours != theirs:
            lacks.append(f"rsocket-trio {ours}, as at the driver")
    return attrs.evolve(found, lacks=tuple(lacks))


def silent(place: str, error: Exception) -> Interpreter:
    """Return an interpreter that did not answer, with Spark's reason."""
    text = str(error).strip() or type(error).__name__
    clue = CLUE.search(text)
    return Interpreter(place, lacks=(f"an answer: {clue[0] if clue else text.splitlines()[0][:160]}",))


@cache
def pickle_by_value() -> None:
    """Have the probe travel whole, and not by the name of a module that may be missing where it arrives."""
    if __name__ != "__main__":
        cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]  # it has no types


def check(spark: SparkSession, timeout: float = EXECUTOR_TIMEOUT) -> list[Interpreter]:
    """Return the interpreters of the session ``spark``, in the order in which Spark comes to them.

    ``timeout`` is the time in seconds that executors get to answer.
    """
    pickle_by_value()
    driver = judged("driver", facts())
    context = getattr(spark, "_sc", None)
    if context is None:  # Spark Connect
        return [driver, *behind(spark, driver, timeout)]
    # A source that is found by its name runs another Python than one that is registered, as the probe is.
    registered = context.pythonExec
    context.pythonExec = os.environ.get("PYSPARK_DRIVER_PYTHON") or os.environ.get("PYSPARK_PYTHON") or "python3"
    try:
        return [driver, *behind(spark, driver, timeout)]
    finally:
        context.pythonExec = registered


def behind(spark: SparkSession, driver: Interpreter, timeout: float) -> list[Interpreter]:
    """Return the interpreters that Spark starts: those of the look-up, the planner and the executors."""
    try:
        spark.dataSource.register(Probe)
        frame = spark.read.format(Probe.name()).load()
        said = bytes.fromhex(frame.schema.fields[0].metadata["comment"]).decode()
    except (PySparkException, Py4JError) as error:
        return [silent("look-up", error), silent("planner", error)]
    planner = judged("planner", said, driver)
    # The same Python looks sources up, in another process. A source that it finds complains that it got no options.
    lost: tuple[str, ...] = ()
    try:
        spark.read.format("rsocket").load()
    except (PySparkException, Py4JError) as error:
        if "'path' is missing" not in str(error):
            lost = ("pyspark_rsocket, by which Spark finds rsocket",)
    found = [attrs.evolve(planner, place="look-up", lacks=planner.lacks or lost), planner]
    context = getattr(spark, "_sc", None)
    late = threading.Timer(timeout, spark.interruptAll if context is None else context.cancelAllJobs)
    late.start()
    try:
        if context is None:
            answers = [row[0] for row in frame.collect()]
        else:
            # A task of a source would need pyarrow, and one of an RDD needs nothing.
            tasks = max(TASKS, 2 * context.defaultParallelism)
            answers = context.parallelize(range(tasks), tasks).map(lambda _: facts()).collect()
        return found + distinct("executor", answers, driver)
    except (PySparkException, Py4JError) as error:
        if late.finished.is_set():
            why = f"an answer within {timeout:g} s: does the cluster have free cores?"
            return [*found, Interpreter("executor", lacks=(why,))]
        return [*found, silent("executor", error)]
    finally:
        late.cancel()


def distinct(place: str, said: Sequence[str], driver: Interpreter) -> list[Interpreter]:
    """Return each interpreter once, by host and path."""
    return [judged(place, one, driver) for one in sorted(set(said))]


def table(found: Sequence[Interpreter]) -> str:
    """Return the interpreters as lines of a table."""
    rows: list[tuple[str, ...]] = [("interpreter", "host", "path", "python", *NEEDED, "lacks")]
    for one in found:
        packages = (one.packages.get(name, "-") for name in NEEDED)
        rows.append((one.place, one.host, one.python, one.version, *packages, "; ".join(one.lacks) or "-"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
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
    parser.add_argument("--timeout", type=float, default=EXECUTOR_TIMEOUT, metavar="SECONDS", help="for the executors")
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
