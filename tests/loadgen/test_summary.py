"""Summaries: rows of any number of tasks add up, and are shown with their units."""

from __future__ import annotations

import json
from typing import Any

from rsocket_trio.loadgen.summary import NS, LoadRecorder, Row, Summary, summarize, table
from tests.loadgen.loads import plan


def counted(answers: int, latency: float, lag: float = 0.0, **counts: int) -> list[Row]:
    """The rows of a task that had so many answers in its first second, and the same in its second one."""
    recorder = LoadRecorder()
    for second in (0.5, 1.5):
        recorder.count(second, "due", number=answers + sum(counts.values()))
        recorder.count(second, "ok", number=answers)
        recorder.count(second, "done", number=answers)
        for kind, count in counts.items():
            recorder.count(second, "error", kind, count)
        for _ in range(answers):
            recorder.took(second, "latency", latency)
            recorder.took(second, "lag", lag)
    recorder.fact("measured", int(2 * NS))
    return recorder.rows()


def summary(*rows: Row, **terms: Any) -> Summary:
    """Their summary."""
    return summarize(plan(tasks=max(sum(row[1] == "measured" for row in rows), 1), **terms), rows, seed=1)


def test_tasks_add_up() -> None:
    found = summary(*counted(60, 0.001), *counted(40, 0.1, Rejected=2), *counted(0, 0, Rejected=3, Timeout=1))

    assert (found.total.due, found.total.ok, found.total.errors) == (212, 200, {"Rejected": 10, "Timeout": 2})
    assert (found.offered, found.rps) == (106.0, 100.0)
    assert [counts.due for counts in found.seconds.values()] == [106, 106]
    times = found.total.quantiles()
    assert times["p50"] == 0.001003519
    assert times["p90"] == times["max"] == 0.100139007


def test_a_table_has_a_line_for_each_second_and_one_for_all() -> None:
    found = summary(*counted(10, 0.001, Rejected=2))

    head, first, second, whole, empty, rate, errors = table(found).splitlines()
    assert " ".join(head.split()) == "second due done errors dropped p50 ms p90 ms p99 ms p99.9 ms max ms"
    assert first.split() == ["0", "12", "10", "2", "0", *["1.004"] * 5]
    assert second.split()[:2] == ["1", "12"]
    assert whole.split()[:4] == ["all", "24", "20", "4"]
    assert empty == ""
    assert rate == "10.0 requests/s answered of 12.0 due, in 2.0 s"
    assert errors == "4 x Rejected"
    assert str(found) == table(found)
    assert len(table(found, per_second=False).splitlines()) == 5


def test_a_summary_is_json() -> None:
    found = json.loads(json.dumps(summary(*counted(10, 0.001, Rejected=2)).to_dict()))

    assert (found["rps"], found["offered"], found["errors"]) == (10.0, 12.0, {"Rejected": 4})
    assert found["latency"] == dict.fromkeys(["p50", "p90", "p99", "p99.9", "max"], 0.001003519)
    assert [each["second"] for each in found["seconds"]] == [0, 1]
    assert "service" not in found


def test_a_generator_far_behind_its_schedule_was_the_limit() -> None:
    late = LoadRecorder()
    for _ in range(100):
        late.took(0, "behind", 0.5)
    found = summary(*counted(10, 0.001), *late.rows())

    assert found.limited
    assert "the generator was the limit: it began requests 501.2 ms late (p99); use more tasks" in str(found)
    assert not summary(*counted(10, 0.001)).limited
