"""A test that is parametrized by ``kind`` runs where a peer of that kind does."""

from __future__ import annotations

import pytest

from tests.interop.peers import require_peer


@pytest.fixture(autouse=True)
def peer_is_here(request: pytest.FixtureRequest) -> None:
    """Skip before Trio runs: a skip from inside its run would lose the reason."""
    callspec = getattr(request.node, "callspec", None)
    kind = callspec.params.get("kind") if callspec is not None else None
    if kind is not None:
        require_peer(kind)
