"""Which responder does ``MODULE:RESPONDER`` name? The module is imported, the current directory first."""

from __future__ import annotations

import os
import sys

from rsocket_trio import Responder
from rsocket_trio.cli.running import FAILED, MISUSED, Failure
from rsocket_trio.server.processes.import_responder import BrokenModule, NoSuchName, find_responder


def load_responder(target: str) -> Responder:
    """The responder. Raises ``Failure`` that says which step failed, and why."""
    look_here_first()
    try:
        return find_responder(target)
    except NoSuchName as error:
        raise Failure(str(error), MISUSED) from None
    except BrokenModule as error:
        raise Failure(str(error), FAILED) from error


def look_here_first() -> None:
    """Have modules looked for in the current directory, too."""
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
