"""How values are declared: frozen for the type checker, cheap at run time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    value = attrs.frozen
else:
    # A frozen class costs four times as much to make, and frames are made for every item.
    value = attrs.define
