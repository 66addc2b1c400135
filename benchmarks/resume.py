"""The cost of resumption: the same work with it off, offered by the server, and on, in the same interleaved run."""

from __future__ import annotations

from benchmarks import harness
from benchmarks.comparing import Runs, interleaved

MEASURED = ("stream", "bulk", "rr1", "rr64", "large")
OFF, OFFERED, ON = "off", "offered", "on"
TOLD: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    OFF: ((), ()),
    OFFERED: (("resume",), ()),
    ON: (("resume",), ("resume",)),
}
"""The arguments of the server and of the client, by way."""


def main(repeat: int) -> Runs:
    """Print and return what each workload cost, by how much of resumption there was."""

    def run(workload: str, way: str) -> harness.Cost:
        to_server, to_client = TOLD[way]
        return harness.run("trio", workload, to_server=to_server, to_client=to_client)

    return interleaved({workload: [*TOLD] for workload in MEASURED}, repeat, run)


if __name__ == "__main__":
    main(5)
