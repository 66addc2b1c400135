"""Finds and opens the C library of Aeron: its client, and its media driver."""

from __future__ import annotations

import ctypes.util
import errno
import importlib.util
import os
import re
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import attrs

from rsocket_trio.extras import install_command

LIBRARY_VARIABLE = "RSOCKET_TRIO_AERON_LIBRARY"
"""The environment variable with the path of the library."""
NO_CFFI = f"aeron needs cffi: {install_command('aeron')}"
DRIVER = "libaeron_driver.so"
"""The file of Aeron's own build that has the driver together with the client."""
DECLARATIONS = Path(__file__).with_name("aeron_api.h")
"""The declarations of the functions that are used."""
REASON = re.compile(r"^\s*\((-?\d+)\) (.*)$", re.MULTILINE)
"""A reason in an error of Aeron, behind its number: above 0 that of the system, else one of Aeron's own."""


@attrs.frozen
class AeronLibrary:
    """The open library. ``api`` has the functions."""

    ffi: Any
    api: Any

    def check(self, result: int, doing: str) -> None:
        """Raise ``OSError`` with the innermost reason if a function returned that it failed at what it was doing."""
        if result < 0:
            text = self.text(self.api.aeron_errmsg())
            # Each function has a line in brackets.
            number, reason = (REASON.findall(text) or [(0, text.strip() or "no reason was given")])[-1]
            raise OSError(max(int(number), 0) or errno.EIO, f"{doing}: {reason}" if doing else reason)

    def text(self, pointer: object) -> str:
        """Return text of the library."""
        text: bytes = self.ffi.string(pointer)
        return text.decode(errors="replace")


def open_library(path: str | os.PathLike[str] | None = None) -> AeronLibrary:
    """Open the library at ``path``, or the first that is found.

    Looked for are the file that the environment variable ``RSOCKET_TRIO_AERON_LIBRARY`` names, the extension of the
    package pyaeron, and the system's ``libaeron_driver.so``. Raise ``ModuleNotFoundError`` without cffi, and
    ``OSError`` that names what was looked for.
    """
    named = os.fspath(path) if path is not None else os.environ.get(LIBRARY_VARIABLE)
    return _open(named or None)


@cache
def _open(named: str | None) -> AeronLibrary:
    if named is not None:
        return _opened(named)
    # The package is not imported: its extension may be of another version of Python, and none of Python's is needed.
    package = importlib.util.find_spec("pyaeron")
    folders = (package.submodule_search_locations or ()) if package is not None else ()
    places = [str(file) for folder in folders for file in sorted(Path(folder).glob("_pyaeron*.so"))]
    places.append(ctypes.util.find_library("aeron_driver") or DRIVER)
    for place in places:
        with suppress(OSError):
            return _opened(place)
    raise OSError(
        errno.ENOENT,
        f"no Aeron library: neither the argument library nor {LIBRARY_VARIABLE} names one, pyaeron is not installed "
        f"({install_command('aeron')}, on Python 3.12 or newer), and the system has none of {', '.join(places)}",
    )


def _opened(path: str) -> AeronLibrary:
    """Open one file. Raise ``OSError``, and ``ModuleNotFoundError`` without cffi."""
    try:
        from cffi import FFI
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(NO_CFFI, name="cffi") from error
    ffi = FFI()
    ffi.cdef(DECLARATIONS.read_text())
    try:
        api = ffi.dlopen(path)
    except OSError as error:
        # The loader names the path, cffi names it again, and tells where else it has looked.
        text = str(error).partition(".  Additionally")[0].rpartition(f"{path}: ")[2]
        raise OSError(errno.ENOEXEC, f"the Aeron library {path} can't be opened: {text}") from None
    if getattr(api, "aeron_driver_init", None) is None:
        raise OSError(errno.ENOEXEC, f"{path} is no Aeron library with a driver: it has no aeron_driver_init")
    return AeronLibrary(ffi, api)
