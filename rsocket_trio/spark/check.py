"""Checks every Python that Spark runs for the source: ``python -m rsocket_trio.spark.check [--master URL]``.

Spark starts Python on the driver's machine, to find and to plan the source, and on the executors. Each may be another
interpreter, and each needs this package. What is sent to executors is pickled by value and uses the standard library
alone, so that it runs where the package is missing.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import threading
from collections.abc import Sequence
from typing import Final, NamedTuple

from py4j.protocol import Py4JError
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

from rsocket_trio.spark import JavaNotFoundError, ensure_java
from rsocket_trio.spark.installation import LEAST, version_numbers

FINE, LACKING, NO_CLUSTER = 0, 1, 3
"""Exit codes."""
NEEDED: Final = ("rsocket-trio", "pyspark", "pyarrow", "trio", "attrs")
"""The packages that every interpreter needs."""
TASKS: Final = 16
"""Tasks that look around on the executors."""
EXECUTOR_TIMEOUT: Final = 120.0
"""Seconds that executors get to answer, unless ``--timeout`` says otherwise."""
CLUE: Final = re.compile(
    r"Cannot run program \"[^\"]+\"|\[(PYTHON_VERSION_MISMATCH|DATA_SOURCE_NOT_FOUND)\][^\n]+|No module named '[^']+'"
)
"""The parts of Spark's errors that say why an interpreter did not answer."""


class Interpreter(NamedTuple):
    """An interpreter: the ``place`` where Spark runs it, what it is, and what it ``lacks``, empty for nothing."""

    place: str
    description: str
    lacks: str


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
        if importlib.util.find_spec(module) is not None:
            try:
                packages[name] = version(name)
            except PackageNotFoundError:
                packages[name] = "?"  # on the path without metadata: a checkout, or Spark's own zip file
    return json.dumps([socket.gethostname(), sys.executable, platform.python_version(), packages])


def judged(place: str, answer: str) -> Interpreter:
    """Return the interpreter at a place whose ``facts`` are ``answer``."""
    host, python, version, packages = json.loads(answer)
    lacks = [name for name in NEEDED if name not in packages]
    for name, least in LEAST.items():
        numbers = version_numbers(packages.get(name, ""))
        if numbers is not None and numbers < least:
            lacks.append(f"{name} {least[0]}.{least[1]} or newer")
    if version_numbers(version) != sys.version_info[:2]:
        lacks.append("Python {}.{}, as at the driver".format(*sys.version_info))
    versions = ", ".join(f"{name} {number}" for name, number in packages.items())
    return Interpreter(place, f"{host} {python} {version} with {versions or 'no package'}", ", ".join(lacks))


def silent(place: str, error: Exception) -> Interpreter:
    """Return an interpreter that did not answer, with Spark's reason."""
    text = str(error).strip() or type(error).__name__
    clue = CLUE.search(text)
    return Interpreter(place, "?", f"an answer: {clue[0] if clue else text.splitlines()[0][:160]}")


def check(spark: SparkSession, timeout: float = EXECUTOR_TIMEOUT) -> list[Interpreter]:
    """Return the interpreters of the session ``spark``, in the order in which Spark comes to them.

    ``timeout`` is the time in seconds that executors get to answer.
    """
    interpreters = [judged("driver", facts())]
    try:
        spark.read.format("rsocket").load()
    except (PySparkException, Py4JError) as error:
        # A source that is found and runs complains that it got no options.
        fine = "'path' is missing" in str(error)
        interpreters.append(Interpreter("planner", "on the driver's machine", "") if fine else silent("planner", error))
    if __name__ != "__main__":
        # The function travels whole, and not by the name of a module that may be missing where it arrives.
        cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]  # it has no types
    late = threading.Timer(timeout, spark.interruptAll)
    late.start()
    try:
        look = udf(lambda number: facts(), useArrow=False)
        rows = spark.range(0, TASKS, 1, TASKS).select(look("id")).distinct().collect()
        interpreters += [judged("executor", answer) for answer in sorted(row[0] for row in rows)]
    except (PySparkException, Py4JError) as error:
        why = Interpreter("executor", "?", f"an answer within {timeout:g} s: does the cluster have free cores?")
        interpreters.append(why if late.finished.is_set() else silent("executor", error))
    finally:
        late.cancel()
    return interpreters


def session(master: str | None, settings: Sequence[str]) -> SparkSession:
    """Return a session of the master, with settings ``name=value``. Raise ``JavaNotFoundError`` without a Java."""
    builder = SparkSession.builder.appName("rsocket_trio.spark.check")
    for setting in settings:
        name, _, value = setting.partition("=")
        builder = builder.config(name, value)
    if master is not None and master.startswith("sc://"):
        return builder.remote(master).getOrCreate()
    ensure_java()
    # Every executor is to be there when the tasks are given out.
    builder = builder.config("spark.scheduler.minRegisteredResourcesRatio", "1.0")
    builder = builder.config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
    return (builder if master is None else builder.master(master)).getOrCreate()


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each interpreter. Return 0, 1 where one lacks something, and 3 without a session."""
    parser = argparse.ArgumentParser(prog="python -m rsocket_trio.spark.check", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--master", metavar="URL", help="the cluster: spark://, yarn, k8s://, local[2], or sc:// of Connect"
    )
    parser.add_argument("--conf", action="append", default=[], metavar="NAME=VALUE", help="a setting of Spark")
    parser.add_argument("--timeout", type=float, default=EXECUTOR_TIMEOUT, metavar="SECONDS", help="for the executors")
    chosen = parser.parse_args(arguments)
    try:
        spark = session(chosen.master, chosen.conf)
    except (JavaNotFoundError, PySparkException, Py4JError, RuntimeError) as error:
        print(f"no session: {silent('driver', error).lacks}", file=sys.stderr)
        return NO_CLUSTER
    try:
        interpreters = check(spark, chosen.timeout)
    finally:
        spark.stop()
    for place, description, lacks in interpreters:
        print(f"{place}: {description}{'; lacks ' if lacks else ''}{lacks}")
    return LACKING if any(interpreter.lacks for interpreter in interpreters) else FINE


if __name__ == "__main__":
    sys.exit(main())
