"""Two sessions and a plain model of them agree, whatever their applications do and however slow the wires are.

``python -m qa.fuzz.model --examples 1000 --steps 50`` runs many more examples.
"""

from __future__ import annotations

import pytest

from qa.fuzz.model import MACHINES, run_machine
from tests.each_row import ALL_CASES


@pytest.mark.parametrize("name", MACHINES)
def test_a_pair_of_sessions_does_what_the_model_does(name: str) -> None:
    run_machine(name, 40 if ALL_CASES else 12, 50, derandomize=True)
