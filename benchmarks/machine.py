"""The machine that figures are measured on: processor, memory, system, Python and load."""

from __future__ import annotations

import os
import platform
import shlex
import sys
import sysconfig
from datetime import UTC, datetime
from pathlib import Path

from qa.pythons import speed


def describe() -> dict[str, object]:
    """Processor, memory, system and versions, as the report says them."""
    return {
        "processor": _field("/proc/cpuinfo", "model name") or platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "system": f"{platform.system()} {platform.release()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "origin": _origin(),
        "config_args": " ".join(word for word in _config_args() if "/" not in word),
        "python_speed": speed(sys.executable),
        "date": datetime.now(UTC).date().isoformat(),
        "load": list(os.getloadavg()),
    }


def _origin() -> str:
    """Return whose Python this is."""
    return "the distribution's" if sys.base_prefix == "/usr" else "pyenv's" if "pyenv" in sys.base_prefix else "another"


def _config_args() -> list[str]:
    """Return the words with which this Python was configured."""
    return shlex.split(sysconfig.get_config_var("CONFIG_ARGS") or "")


def _field(path: str, name: str) -> str | None:
    if not Path(path).exists():
        return None
    for line in Path(path).read_text().splitlines():
        key, _, of_key = line.partition(":")
        if key.strip() == name:
            return of_key.strip()
    return None
