"""Imports the responder that ``MODULE:RESPONDER`` names."""

from __future__ import annotations

import importlib
import os
import traceback
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType

from rsocket_trio.forms import with_article
from rsocket_trio.responder import Responder

OURS = str(Path(__file__).parents[2]) + os.sep
"""The library's directory: its frames are left out when a fault in a user's module is located."""


class NoSuchName(ValueError):
    """The name can't be found, or names an object that is not a ``Responder``."""


class BrokenModule(ImportError):
    """The module exists, but its own code failed on import."""


def split_name(name: object) -> tuple[str, str]:
    """Return the module and the path of names inside it. Raise ``NoSuchName``, and ``TypeError`` unless it is text."""
    if not isinstance(name, str):
        raise TypeError(f"a responder's name is text like 'app:responder', not {with_article(type(name).__name__)}")
    module, colon, path = name.partition(":")
    if module.endswith(".py"):
        as_module = os.path.normpath(module).removesuffix(".py").replace(os.sep, ".")
        raise NoSuchName(f"{name!r} names a file: write {as_module}:{path or 'responder'}")
    if not module or module.startswith(".") or not colon or not path:
        raise NoSuchName(f"{name!r}: MODULE:RESPONDER is needed, as in app:responder")
    return module, path


def find_responder(name: str) -> Responder:
    """Import the module and return the responder. Raise ``NoSuchName`` and ``BrokenModule`` with the reason."""
    module, path = split_name(name)
    value: object = _import(module)
    owner = f"module {module!r}"
    for attribute in path.split("."):
        try:
            value = getattr(value, attribute)
        except AttributeError:
            hint = "".join(f": did you mean {name!r}?" for name in get_close_matches(attribute, dir(value), n=1))
            raise NoSuchName(f"{owner} has no {attribute!r}{hint}") from None
        owner = name
    if not isinstance(value, Responder):
        raise NoSuchName(f"{name} is {with_article(type(value).__name__)}, not a Responder")
    return value


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise NoSuchName(f"no module named {error.name!r}, here or among the installed ones") from None
        raise _broken(name, error) from error
    except (Exception, SystemExit) as error:
        raise _broken(name, error) from error


def _broken(name: str, error: BaseException) -> BrokenModule:
    """Return the module's own failure: the last line that a traceback would show, and its file and line."""
    last = traceback.format_exception_only(error)[-1].strip()
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(OURS)]
    place = f"{os.path.basename(frames[-1].filename)} line {frames[-1].lineno}: " if frames else ""
    if isinstance(error, SyntaxError) and error.filename:
        place = f"{os.path.basename(error.filename)} line {error.lineno}: "
        last = f"{type(error).__name__}: {error.msg}"
    return BrokenModule(f"module {name!r} failed while it was imported: {place}{last}")
