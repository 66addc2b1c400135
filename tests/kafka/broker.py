"""A broker of Apache Kafka for tests: one node, its own controller, on ports of its own."""

from __future__ import annotations

import shutil
import socket
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Self

from tests.blocks import ROOT
from tests.missing import require

JARS = ROOT / "build" / "kafka"
CLUSTER = "MkU3OEVBNTcwNTJENDM2Qg"
JAVA = ["java", "-Xmx512m", "-Xss512k", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
START_SECONDS = 60.0
SETTINGS = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{control}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{control}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={folder}/data
num.network.threads=2
num.io.threads=2
auto.create.topics.enable=false
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.abort.timed.out.transaction.cleanup.interval.ms=500
group.initial.rebalance.delay.ms=0
broker.session.timeout.ms=1500
broker.heartbeat.interval.ms=300
log.cleaner.backoff.ms=100
log.initial.task.delay.ms=100
"""


def missing_kafka() -> str | None:
    """Return what is missing for a broker and its client, or ``None``."""
    if find_spec("confluent_kafka") is None:
        return "confluent-kafka is missing: pip install '.[kafka]'"
    if shutil.which("java") is None or not (JARS / ".built").exists():
        return "Kafka's jars or a Java are missing: make build/kafka/.built"
    return None


def require_kafka() -> None:
    """Skip the test without a broker, or fail it where ``CI`` is set."""
    require(missing_kafka())


class Broker:
    """A broker with its data in ``folder``, started by ``with`` and killed at its end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        port, control = free_ports(2)
        self.servers = f"127.0.0.1:{port}"
        self._settings = folder / "server.properties"
        self._settings.write_text(SETTINGS.format(port=port, control=control, folder=folder))
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._run("kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", str(self._settings)).wait()
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self, *, wait: bool = True) -> None:
        """Start the broker, and wait until it answers."""
        self._process = self._run("kafka.Kafka", str(self._settings))
        if wait:
            from confluent_kafka.admin import AdminClient

            AdminClient(
                {"bootstrap.servers": self.servers, "log_level": 0, "reconnect.backoff.max.ms": 200}
            ).list_topics(timeout=START_SECONDS)

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def _run(self, *words: str) -> subprocess.Popen[bytes]:
        with (self._folder / "broker.log").open("ab") as log:
            return subprocess.Popen([*JAVA, "-cp", f"{JARS}/*", *words], stdout=log, stderr=log, cwd=self._folder)


def free_ports(count: int) -> list[int]:
    """Ports that the system gives out, free at this moment."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()
