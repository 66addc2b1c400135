"""What interop tests share: peers that are here, servers that stay, and defects that are known.

A test that is parametrized by ``kind`` runs where a peer of that kind does. One that takes ``setting`` is played once
for each kind, transport and direction.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.interop.both_ways import Setting
from tests.interop.defects import defect_in
from tests.interop.peers import KINDS, ROOT, TRANSPORTS, command_for, end, require_peer

SETTINGS = [(kind, transport, we_ask) for kind in KINDS for transport in TRANSPORTS[kind] for we_ask in (True, False)]


def name_of(param: tuple[str, str, bool]) -> str:
    kind, transport, we_ask = param
    return f"{kind}-{transport}-{'we_ask' if we_ask else 'they_ask'}"


@pytest.fixture(autouse=True)
def peer_is_here(request: pytest.FixtureRequest) -> None:
    """Skip before Trio runs: a skip from inside its run would lose the reason."""
    callspec = getattr(request.node, "callspec", None)
    kind = callspec.params.get("kind") if callspec is not None else None
    if kind is not None:
        require_peer(kind)


@pytest.fixture(scope="session", params=SETTINGS, ids=name_of)
def session_setting(request: pytest.FixtureRequest) -> Iterator[Setting]:
    """One direction of one pair. A peer's server serves all tests that ask it for nothing special."""
    kind, transport, we_ask = request.param
    require_peer(kind)
    if not we_ask:
        yield Setting(kind, transport, None)
        return
    process = subprocess.Popen(
        command_for(kind, "server", transport), cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        port = process.stdout.readline().split()[1]
        yield Setting(kind, transport, f"{transport}://127.0.0.1:{port}")
        assert process.poll() is None, f"the {kind} server ended"
    finally:
        end(process)
        process.stdout.close()


@pytest.fixture
def setting(session_setting: Setting, request: pytest.FixtureRequest) -> Setting:
    """The setting; where the peer is known to fail, the test must fail."""
    node: Any = request.node
    reason = defect_in(node.originalname, session_setting)
    if reason is not None:
        request.applymarker(pytest.mark.xfail(reason=reason, strict=True))
    return session_setting
