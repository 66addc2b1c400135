"""The contract of the typed workload for both ends, with this library."""

from __future__ import annotations

from typing import Protocol

from benchmarks.peers.orders import NAMESPACE, Order, Receipt
from rsocket_trio.services import Service, request_response


class Orders(Service, Protocol, route=NAMESPACE):
    """Takes orders."""

    @request_response
    async def place(self, order: Order) -> Receipt: ...
