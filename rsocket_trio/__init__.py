"""RSocket for Trio: request/response, streams and channels with back-pressure, cancellation and leases.

The names are those of ``_public.py``. They are loaded with the first one that is asked for: the command line
begins in this package, and has Ctrl-C in its hands before it loads anything that takes time.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as type checkers take it; to import typing takes longer than all that is here
if TYPE_CHECKING:
    from rsocket_trio._public import *  # noqa: F403 - its __all__ is checked there
    from rsocket_trio._public import __all__ as __all__
else:

    def __getattr__(name: str) -> object:
        """Load all public names, and return the one that was asked for."""
        if not name.startswith("_") or name == "__all__":
            from rsocket_trio import _public as public

            globals().update({each: getattr(public, each) for each in public.__all__}, __all__=public.__all__)
            if name in globals():
                return globals()[name]
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        """The public names, and what every module has."""
        __getattr__("__all__")
        return sorted(globals())


del TYPE_CHECKING
