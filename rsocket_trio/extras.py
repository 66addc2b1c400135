"""The command that installs an optional part of this package, as errors name it."""

from __future__ import annotations


def install_command(*extras: str) -> str:
    """Return the command that installs these extras from a checkout, where the package has no release yet."""
    return f"pip install '.[{','.join(extras)}]' in a checkout of rsocket_trio"
