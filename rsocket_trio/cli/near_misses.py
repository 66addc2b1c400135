"""Names the known word that a wrong one was meant to be, as the end of an error."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that is most like ``word``, upper case or not; ``None`` if none is like it."""
    by_lower_case = {name.lower(): name for name in known}
    matches = get_close_matches(word.lower(), by_lower_case, n=1)
    return by_lower_case[matches[0]] if matches else None


def with_hint(text: str, word: str, known: Iterable[str]) -> str:
    """Return the text of an error about a wrong ``word``, with the known word that is like it, if there is one."""
    name = nearest(word, known)
    return text if name is None else f"{text}: did you mean '{name}'?"
