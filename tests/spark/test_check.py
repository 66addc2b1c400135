"""The check of Spark's interpreters: what counts as lacking, and how the table shows it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rsocket_trio.spark import check
from rsocket_trio.spark.check import FINE, LACKING, USAGE, Interpreter, distinct, facts, judged, main, silent, table

PACKAGES = {"rsocket-trio": "0.1.0", "pyspark": "4.3.0", "pyarrow": "26.0.1", "trio": "0.35.0", "attrs": "26.1.0"}
DRIVER = Interpreter("driver", "desk", "/py", "3.11.7", PACKAGES)


def said(**changed: Any) -> str:
    """Return the report of an interpreter that has everything, but for what is changed."""
    return json.dumps({"host": "node", "python": "/py", "version": "3.11.2", "packages": PACKAGES} | changed)


def without(name: str) -> dict[str, str]:
    return {one: version for one, version in PACKAGES.items() if one != name}


@pytest.mark.parametrize(
    ("changed", "lacks"),
    [
        ({}, ()),
        ({"packages": without("pyarrow")}, ("pyarrow",)),
        ({"packages": PACKAGES | {"pyspark": "3.5.1"}}, ("pyspark 4.2 or newer",)),
        ({"packages": PACKAGES | {"rsocket-trio": "0.0.9"}}, ("rsocket-trio 0.1.0, as at the driver",)),
        # A checkout on the path has no version.
        ({"packages": PACKAGES | {"rsocket-trio": "?"}}, ()),
        ({"version": "3.12.1"}, ("Python 3.11, as at the driver",)),
    ],
    ids=["nothing", "package", "old", "other", "checkout", "python"],
)
def test_an_interpreter_lacks_what_it_has_not_or_has_in_another_version(
    changed: dict[str, Any], lacks: tuple[str, ...]
) -> None:
    assert judged("look-up", said(**changed), DRIVER).lacks == lacks


def test_this_interpreter_lacks_nothing() -> None:
    assert judged("look-up", facts()).lacks == ()


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        ('x\njava.io.IOException: Cannot run program "/no/python": error=2', 'Cannot run program "/no/python"'),
        (
            "x\n[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.12 than\nmore",
            "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.12 than",
        ),
        ("Traceback\nModuleNotFoundError: No module named 'pandas'\nmore", "No module named 'pandas'"),
        ("\nsomething else\n", "something else"),
    ],
    ids=["path", "version", "module", "other"],
)
def test_an_interpreter_that_does_not_answer_lacks_an_answer_with_its_reason(error: str, reason: str) -> None:
    assert silent("executor", RuntimeError(error)).lacks == (f"an answer: {reason}",)


def test_executors_of_one_host_and_path_are_one_row() -> None:
    assert [one.host for one in distinct("executor", [said(host="b"), said(host="a"), said(host="b")], DRIVER)] == [
        "a",
        "b",
    ]


def test_the_table_shows_each_interpreter_and_what_it_lacks() -> None:
    lines = table([DRIVER, judged("executor", said(packages=without("trio")), DRIVER)]).splitlines()

    assert lines[0].split() == [*("interpreter", "host", "path", "python"), *PACKAGES, "lacks"]
    assert lines[1].split() == ["driver", "desk", "/py", "3.11.7", *PACKAGES.values(), "-"]
    assert lines[2].split()[-2:] == ["26.1.0", "trio"]


def test_a_setting_without_a_value_is_a_wrong_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--conf", "spark.archives"])

    assert ended.value.code == USAGE
    assert "--conf takes NAME=VALUE" in capsys.readouterr().err


@pytest.mark.parametrize(("lacks", "code"), [((), FINE), (("trio",), LACKING)], ids=["fine", "lacking"])
def test_the_exit_code_says_if_something_lacks(
    lacks: tuple[str, ...], code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Session:
        def stop(self) -> None:
            pass

    monkeypatch.setattr(check, "session", lambda master, settings: Session())
    monkeypatch.setattr(check, "check", lambda spark, timeout: [Interpreter("planner", lacks=lacks)])

    assert main([]) == code
    assert "planner" in capsys.readouterr().out
