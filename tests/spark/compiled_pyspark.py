"""Has Spark's workers import the installed pyspark, which is compiled, and not the archive that lies beside it.

python -m tests.spark.compiled_pyspark

Spark puts ``python/lib/pyspark.zip`` and py4j's archive in front of the path of each Python that it starts, and what is
imported from an archive is compiled anew each time: a start took 2.0 s of CPU instead of 0.42. A folder of the same
name serves as well. Only a pyspark of this environment is changed, and only once.
"""

from __future__ import annotations

import compileall
import os
import sys
from importlib.util import find_spec
from pathlib import Path


def main() -> None:
    """Replace the archives by folders with links to the packages, unless that was done."""
    packages = {name: folder for name in ("pyspark", "py4j") if (folder := folder_of(name)) is not None}
    if len(packages) < 2:
        return
    for archive in sorted((packages["pyspark"] / "python" / "lib").glob("*.zip")):
        if archive.is_file():
            package = packages["py4j" if archive.name.startswith("py4j") else "pyspark"]
            compileall.compile_dir(package, quiet=2)
            replace(archive, package)


def folder_of(name: str) -> Path | None:
    """Return the folder of a package of this environment."""
    spec = find_spec(name)
    if spec is None or spec.origin is None or Path(sys.prefix) not in Path(spec.origin).parents:
        return None
    return Path(spec.origin).parent


def replace(archive: Path, package: Path) -> None:
    """Put a folder that holds a link to the package in the place of its archive."""
    made = archive.with_name(f"{archive.name}.new")
    made.mkdir(exist_ok=True)
    link = made / package.name
    if not link.is_symlink():
        link.symlink_to(os.path.relpath(package, made))
    archive.unlink()
    made.rename(archive)


if __name__ == "__main__":
    main()
