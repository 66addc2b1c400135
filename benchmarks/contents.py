"""The sections of the benchmark, in the order of the page: how each is measured, and how it is written.

A further section is a module of its own and a row here.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs

from benchmarks import (
    aeron,
    aims,
    analytics,
    between,
    compared,
    comparing,
    dialects,
    http2,
    interpreters,
    latency,
    memory,
    micro,
    oob,
    pipelined,
    profiles,
    resume,
    scaling,
    sections,
    spark,
    spark_pages,
    tls,
    typed,
    under_java,
    workers,
)


@attrs.frozen
class Asked:
    """The options of the command line that all sections share.

    Repetitions, frames of the capture that is analysed, and the folder that profiles are kept in.
    """

    repeat: int = 5
    frames: int = analytics.FRAMES
    profiles: Path | None = None


@attrs.frozen
class Section:
    """One section. Its name is its word on the command line, and its key in the results.

    ``measure`` prints and returns its figures, ``None`` if there are none, and ``write`` makes Markdown of all figures,
    where its own are among them. ``plots`` are those that stand below it.
    """

    name: str
    measure: Callable[[Asked], Any]
    write: Callable[[dict[str, Any]], list[str]]
    plots: tuple[str, ...] = ()


WAITS = ("ratios", "latency")

# fmt: off
SECTIONS = (
    Section("aims",         lambda asked: aims.main(asked.repeat, profiles=asked.profiles), aims.written),
    Section("profiles",     lambda asked: profiles.main(asked.profiles),            profiles.written),
    Section("workloads",    lambda asked: comparing.compare(asked.repeat),          compared.workloads, WAITS),
    Section("java",         lambda asked: under_java.main(asked.repeat),            under_java.written),
    Section("typed",        lambda asked: typed.main(asked.repeat),                 compared.objects),
    Section("websocket",    lambda asked: comparing.over_websocket(asked.repeat),   compared.websocket),
    Section("http2",        lambda asked: http2.main(asked.repeat),                 http2.written),
    Section("tls",          lambda asked: tls.main(asked.repeat),                   tls.written),
    Section("aeron",        lambda asked: aeron.main(asked.repeat),                 aeron.written),
    Section("memory",       lambda asked: memory.main(min(asked.repeat, 3)),        memory.written),
    Section("latency",      lambda asked: latency.main(),                           sections.beside_bulk),
    Section("scaling",      lambda asked: scaling.main(asked.repeat),               sections.scaling, ("scaling",)),
    Section("dialects",     lambda asked: dialects.main(asked.repeat),              compared.other_dialects),
    Section("resume",       lambda asked: resume.main(asked.repeat),                compared.resumption),
    Section("oob",          lambda asked: oob.main(),                               sections.streamux),
    Section("workers",      lambda asked: workers.main(min(asked.repeat, 3)),       sections.processes),
    Section("between",      lambda asked: between.main(asked.repeat),               between.written),
    Section("micro",        lambda asked: micro.main(),                             sections.pieces),
    Section("interpreters", lambda asked: interpreters.main(asked.repeat),          sections.interpreters),
)
PIPELINE = (
    Section("analytics",    lambda asked: analytics.main(asked.frames),             pipelined.analytics),
    Section("spark",        lambda asked: spark.main(min(asked.repeat, 3)),         spark_pages.section),
)
"""Those of the data pipeline, which stand below a heading of their own at the end."""
# fmt: on
BY_NAME = {section.name: section for section in (*SECTIONS, *PIPELINE)}
