"""``--peer``: a peer's name on the command line sets what nobody else said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rsocket_trio import Keepalive
from rsocket_trio.cli.client_command import Ask
from rsocket_trio.cli.connections import Options
from rsocket_trio.cli.main import commands
from rsocket_trio.rsocket.quirks import PEERS
from tests.cli.commands import run
from tests.each_row import each_row

CLIENTS = ["request", "stream", "channel", "fnf", "push"]
URI = "tcp://127.0.0.1:1"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Options, Ask]]:
    """Return what a command line would do, if it did it."""
    seen: list[tuple[Options, Ask]] = []

    def note(ask: Ask, perform: object, *, is_push: bool) -> int:
        seen.append(ask.planned(is_push=is_push))
        return 0

    def ask(*words: str) -> tuple[Options, Ask]:
        with pytest.raises(SystemExit) as left:
            commands.main(list(words))
        assert left.value.code == 0
        return seen.pop()

    monkeypatch.setattr(Ask, "run", note)
    return ask


@each_row("command", CLIENTS)
@each_row("name", PEERS)
def test_every_client_command_has_it(asked: Callable[..., tuple[Options, Ask]], command: str, name: str) -> None:
    options, ask = asked(command, URI, "--peer", name)
    peer = PEERS[name]

    assert (options["peer"], options["dialect"], options["quirks"]) == (name, peer.dialect, ())
    if peer.mime is not None:
        assert (options["data_mime"], options["metadata_mime"]) == ("utf-8", "utf-8")
    assert options["keepalive"] == (Keepalive(500, 900) if name == "js-1" else Keepalive(20, 90))
    assert ask.credit == (2 if name == "java-0.5.2" else 256)


def test_what_is_said_wins(asked: Callable[..., tuple[Options, Ask]]) -> None:
    terms = "--data-mime json --metadata-mime a/b --keepalive 7 --dialect 0.1 --quirk version_0_0"
    options, _ = asked("request", URI, "--peer", "js-1", *terms.split())

    assert (options["data_mime"], options["metadata_mime"]) == ("application/json", "a/b")
    assert options["keepalive"] == Keepalive(7, 900)
    assert options["quirks"] == ("version_0_0",)
    options, ask = asked("stream", URI, "--peer", "java-0.5.2", "--limit-rate", "9", "--lifetime", "5")
    assert options["keepalive"] == Keepalive(5 / 3, 5)
    assert ask.credit == 9


async def test_a_name_that_nobody_has_is_wrong_usage(tmp_path: Path) -> None:
    unknown = await run("request", URI, "--peer", "java-9")
    other = await run("request", URI, "--peer", "js-3", "--dialect", "1.0")

    assert (unknown.code, other.code) == (2, 2)
    assert f"peer 'java-9': the known ones are {', '.join(PEERS)}" in " ".join(unknown.stderr.split())
    assert "peer 'js-3' speaks reactivesocket/0.1, not rsocket/1.0" in other.stderr
