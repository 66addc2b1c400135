"""Which responder does ``MODULE:RESPONDER`` name? The module is imported, the current directory first."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from types import ModuleType

from rsocket_trio import Responder
from rsocket_trio.cli.running import FAILED, MISUSED, Failure


def load_responder(target: str) -> Responder:
    """The responder. Raises ``Failure`` that says which step failed, and why."""
    module_name, colon, path = target.partition(":")
    if not module_name or module_name.startswith(".") or not colon or not path:
        raise Failure(f"{target!r}: MODULE:RESPONDER is needed, as in app:responder", MISUSED)
    found: object = _import(module_name)
    owner = f"module {module_name!r}"
    for name in path.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            raise Failure(f"{owner} has no {name!r}", MISUSED) from None
        owner = f"{module_name}:{path}"
    if not isinstance(found, Responder):
        raise Failure(f"{module_name}:{path} is {_kind(found)}, not a Responder", MISUSED)
    return found


def _import(name: str) -> ModuleType:
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise Failure(f"no module named {error.name!r}, here or among the installed ones", MISUSED) from None
        raise _broken(name, error) from error
    except (Exception, SystemExit) as error:
        raise _broken(name, error) from error


def _broken(name: str, error: BaseException) -> Failure:
    """What the module's own failure was: the last line that a traceback would show, and where it came from."""
    last = traceback.format_exception_only(error)[-1].strip()
    frames = traceback.extract_tb(error.__traceback__)
    place = f"{os.path.basename(frames[-1].filename)} line {frames[-1].lineno}: " if frames else ""
    if isinstance(error, SyntaxError) and error.filename:
        place = f"{os.path.basename(error.filename)} line {error.lineno}: "
        last = f"{type(error).__name__}: {error.msg}"
    return Failure(f"module {name!r} failed while it was imported: {place}{last}", FAILED)


def _kind(found: object) -> str:
    name = type(found).__name__
    return f"a{'n' if name[:1].lower() in 'aeiou' else ''} {name}"
