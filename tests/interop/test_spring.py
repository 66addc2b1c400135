"""Spring's @MessageMapping and RSocketRequester against typed handlers and typed clients, in JSON and CBOR.

One Java process plays both sides. ``make test`` plays each check over TCP; with ``RSOCKET_TRIO_WHOLE_SPRING`` in the
environment, as ``make peers`` sets it, also over WebSocket, and with all that is large in fragments.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.interop.orders_peers import CHECKS, OrdersPeer, orders_peer

WHOLE = "RSOCKET_TRIO_WHOLE_SPRING" in os.environ
MIMES = ("application/json", "application/cbor")
FRAGMENTS = (0, 1000) if WHOLE else (0,)
TRANSPORTS = ("tcp", "ws") if WHOLE else ("tcp",)


@pytest.fixture(scope="module", params=FRAGMENTS, ids=lambda size: f"fragments of {size}" if size else "whole frames")
def spring(request: pytest.FixtureRequest) -> Iterator[OrdersPeer]:
    with orders_peer("spring", str(request.param)) as peer:
        yield peer


@pytest.mark.parametrize("check", [*CHECKS, "channel-cancelled"])
@pytest.mark.parametrize("mime", MIMES)
async def test_a_spring_server_passes_the_checks_of_a_spring_client(spring: OrdersPeer, check: str, mime: str) -> None:
    await spring.check(check, spring.tcp, mime)


async def test_a_spring_server_for_users_refuses_others(spring: OrdersPeer) -> None:
    await spring.check("setup-without-user", spring.strict, "application/json")
    await spring.check("simple-setup", spring.strict, "application/json")


@pytest.mark.parametrize("mime", ["text/plain", "default"])
async def test_spring_writes_a_string_as_its_text_whatever_the_mime_type(spring: OrdersPeer, mime: str) -> None:
    await spring.check("text", spring.ws, mime)
