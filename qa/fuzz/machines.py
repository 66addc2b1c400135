"""The machine of every dialect, and how many examples it runs."""

from __future__ import annotations

import time
from typing import Any, Final

from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from qa.fuzz.model import Machine
from tests.rsocket.test_vectors import FILES

MACHINES: Final[dict[str, type[Machine]]] = {
    dialect.name: type(f"Machine_{name[:-4]}", (Machine,), {"dialect": dialect}) for name, dialect in FILES.items()
}


def run_machine(name: str, examples: int, steps: int, **options: Any) -> None:
    """So many examples of so many steps at most for one dialect."""
    terms = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        **options,
    )
    run_state_machine_as_test(MACHINES[name], settings=terms)


def run_machines(examples: int, steps: int) -> bool:
    """Do the long run of all dialects. Return whether nothing was found."""
    clean = True
    for name in MACHINES:
        start = time.perf_counter()
        try:
            run_machine(name, examples, steps)
        except Exception as error:
            clean = False
            print(f"    {error!r}\n" + "\n".join(getattr(error, "__notes__", ())), flush=True)
        print(f"{name:20} {examples:,} x {steps}  {time.perf_counter() - start:.1f} s", flush=True)
    return clean
