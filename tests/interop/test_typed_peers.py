"""rsocket-py's router and rsocket-js's composite metadata against typed handlers and typed clients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

import pytest

from tests.interop.orders_peers import CHECKS, OrdersPeer, orders_peer
from tests.interop.peers import Kind

KINDS: tuple[Kind, ...] = get_args(Kind)
MIMES = ("application/json", "entry")
"""Either the connection says that its data is JSON, or each request does, on a connection of octets."""


@pytest.fixture(scope="module", params=KINDS)
def peer(request: pytest.FixtureRequest) -> Iterator[OrdersPeer]:
    with orders_peer(request.param) as running:
        yield running


@pytest.mark.parametrize("check", CHECKS)
async def test_a_foreign_server_passes_the_checks_of_its_own_client(peer: OrdersPeer, check: str) -> None:
    await peer.check(check, peer.tcp, "application/json")
