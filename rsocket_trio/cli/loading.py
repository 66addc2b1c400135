"""Imports the responder that ``MODULE:RESPONDER`` names, with the current directory on the module path."""

from __future__ import annotations

import os
import sys

from rsocket_trio import Responder
from rsocket_trio.cli.running import FAILED, MISUSED, Failure
from rsocket_trio.server.processes.import_responder import BrokenModule, NoSuchName, find_responder


def load_responder(target: str) -> Responder:
    """Return the responder. Raise ``Failure`` that names the step that failed, and the reason."""
    look_here_first()
    try:
        return find_responder(target)
    except NoSuchName as error:
        raise Failure(str(error), MISUSED) from None
    except BrokenModule as error:
        raise Failure(str(error), FAILED) from error


def look_here_first() -> None:
    """Put the current directory on the module path, unless it is there."""
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
