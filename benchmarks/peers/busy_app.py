"""A handler that keeps a processor busy: what several worker processes are for."""

from __future__ import annotations

from rsocket_trio import Payload, Responder

STEPS = 40_000
"""About a millisecond of Python."""
responder = Responder()


@responder.request_response
def count(request: Payload) -> bytes:
    total = 0
    for number in range(STEPS):
        total += number
    return b"%d" % total
