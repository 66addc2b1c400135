"""The journal of a part: the file by which a run of pytest tells its supervisor what it does, a JSON object a line.

=============  =========================================================  ===============================
event          further keys                                               written
=============  =========================================================  ===============================
``collect``    ``file``                                                   before a file is imported
``broken``     ``file``, ``text``                                         when it can't be
``collected``  ``items``, so far                                          after collecting, or after each file taken
``needs``      ``item``, ``fixture``                                      for an item whose fixture hung
``start``      ``item``, ``limit`` (seconds)                              before the set-up of an item
``fixture``    ``name``, ``scope``, ``base``, ``param``                   before the set-up of one for several items
``ready``      ``name``                                                   when it is set up, or has failed
``report``     ``item``, ``outcome``, ``when``, ``text``                  for a phase that did not simply pass
``finish``     ``item``, ``seconds``, ``cpu``, ``hung``, ``fixture``      after the teardown of an item
``end``                                                                   when the run is over
=============  =========================================================  ===============================
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class Writer:
    """Appends events to a journal."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write(self, event: str, **keys: object) -> None:
        """Append one event, by one system call: a kill leaves whole lines."""
        os.write(self._descriptor, json.dumps({"event": event, **keys}).encode() + b"\n")


class Reader:
    """Reads the events that have come to a journal since the last look."""

    def __init__(self, path: Path) -> None:
        path.touch()
        self._file = path.open("rb")
        self._partial = b""

    def read(self) -> Iterator[dict[str, Any]]:
        """Return the new events, oldest first."""
        *lines, self._partial = (self._partial + self._file.read()).split(b"\n")
        for line in lines:
            yield json.loads(line)

    def close(self) -> None:
        """Close the file."""
        self._file.close()
