"""A JVM that does not answer costs the run of the tests one item."""

from __future__ import annotations

from pathlib import Path

from tests.qa.testrun.planted import outcomes, run

JVM = """
import glob
import os
import signal
import subprocess

import py4j.java_gateway
import pyspark
import pytest

from rsocket_trio.spark.installation import ensure_java

@pytest.fixture(scope="session")
def jvm():
    java = str(ensure_java())
    [jar] = glob.glob(os.path.join(os.path.dirname(pyspark.__file__), "jars", "py4j-*.jar"))
    gateway = py4j.java_gateway.JavaGateway.launch_gateway(classpath=jar, die_on_exit=True, java_path=java)
    yield gateway
    gateway.shutdown()

def test_it_answers(jvm):
    assert jvm.jvm.System.currentTimeMillis() > 0

@pytest.mark.timeout(1)
def test_it_is_stopped(jvm):
    os.kill(jvm.java_process.pid, signal.SIGSTOP)
    while True:  # it stops thread by thread
        jvm.jvm.System.currentTimeMillis()

def test_another_answers(jvm):
    assert jvm.jvm.System.currentTimeMillis() > 0
"""


def test_a_jvm_that_is_stopped_costs_one_item(tmp_path: Path) -> None:
    result = run(tmp_path, {"jvm": JVM})

    assert outcomes(result, "jvm") == {
        "test_it_answers": "passed",
        "test_it_is_stopped": "failed",
        "test_another_answers": "passed",
    }
    assert result.restarts == 1
