"""The worlds that the application runs in."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
import trustme

from tests.conformance.every_dialect.worlds import World


@pytest.fixture(scope="session")
def contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """TLS for a server and for those who trust it."""
    ca = trustme.CA()
    server, client = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), ssl.create_default_context()
    ca.issue_cert("127.0.0.1").configure_cert(server)
    ca.configure_trust(client)
    return server, client


@pytest.fixture
def world(request: pytest.FixtureRequest, tmp_path: Path, contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> World:
    """One dialect on one transport."""
    dialect, scheme = request.param
    return World(dialect, scheme, tmp_path, contexts)
