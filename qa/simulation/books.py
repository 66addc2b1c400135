"""The records of both sides of a simulated run: plans, arrivals, and findings that nothing explains."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import trio

from qa.simulation.items import HEAD, framed
from qa.simulation.plans import STREAMUX, Call, Plan
from rsocket_trio import ApplicationError, Canceled, Channel, ConnectionLost, NegotiationFailed, Outgoing, Payload
from rsocket_trio.errors import SetupError, StreamError
from rsocket_trio.testing import DeliveryChecker, FrameTrace

LOST = (ConnectionLost, NegotiationFailed)
"""A Streamux connection that is cut within the first message never came to terms."""
OVERDRAWN = "no lease for this request"
"""A lease may end at the responder while a request is under way."""


class Books:
    """The plan and the checker of a run; ``wrong`` is what nothing explains.

    ``received`` counts what came to the client, ``received_before`` what had come when it connected last.
    """

    def __init__(self, plan: Plan, trace: FrameTrace) -> None:
        self.plan = plan
        self.trace = trace
        self.checker = DeliveryChecker()
        self.to_come = list(plan.calls)
        self.outcomes: dict[str, str] = {}
        self.wrong: list[str] = []
        self.received = 0
        self.received_before = 0

    def judged(self, call: Call, error: BaseException) -> str:
        """The name of an error; one that nothing explains is wrong."""
        explained = (
            (isinstance(error, trio.TooSlowError) and call.deadline is not None)
            or (isinstance(error, LOST) and self.plan.may_lose)
            or (isinstance(error, SetupError) and self.plan.resumes and self.has_no_session(error))
            or (isinstance(error, ConnectionLost) and call.caller == "server" and "was not resumed" in error.text)
            or (isinstance(error, StreamError) and self.plan.leases is not None and OVERDRAWN in error.text)
            or (isinstance(error, ApplicationError) and error.text == expected_text(call))
        )
        if not explained:
            self.wrong.append(f"{call.name} raised {error!r}")
        return type(error).__name__

    def has_no_session(self, error: SetupError) -> bool:
        """Return whether there was no session to resume: the SETUP was lost or late, or a copy of it was quicker."""
        return self.received == self.received_before or "token is in use" in error.text

    def expect_no_failure(self, call: Call) -> None:
        if expected_text(call) is not None and call.returns is None:
            self.wrong.append(f"{call.name} completed, its handler fails")

    async def send_all(
        self, out: Channel | Outgoing, call: Call, direction: Literal["up", "down"], sizes: tuple[int, ...]
    ) -> bool:
        """Send items at the call's pace. Return whether they were all wanted."""
        for size in sizes:
            await trio.sleep(call.pace)
            try:
                with self.offered(call, direction, size) as item:
                    await out.send(self.wrapped(call, item))
            except Canceled:
                # The responder returned, or failed, or the other half took this one with it (0.2, Streamux).
                return False
        return True

    @contextmanager
    def offered(self, call: Call, direction: Literal["up", "down"], size: int) -> Iterator[bytes]:
        """The next item, for the block that sends it."""
        try:
            yield self.checker.offer(call.name, direction, size)
        except BaseException as error:
            self.checker.refused(call.name, direction)
            self.trace.note(call.name, "failed to send", type(error).__name__)
            raise

    def called(self, data: bytes) -> tuple[Call, bytes]:
        return self.plan.calls[int.from_bytes(data[:HEAD], "big")], data[HEAD:]

    def wrapped(self, call: Call, item: bytes) -> Payload:
        if self.plan.dialect == STREAMUX and call.kind == "channel":
            return Payload(framed(item))
        return Payload(item, item[-16:] if call.metadata else None)

    def receive(self, call: Call, direction: Literal["up", "down"], payload: Payload) -> None:
        self.checker.received(call.name, direction, payload.data)
        self.received += call.caller == "client" and direction == "down"
        has_metadata = call.metadata and call.kind != "response"
        if payload.metadata != (payload.data[-16:] if has_metadata else None):
            self.wrong.append(f"{call.name}: metadata {payload.metadata!r}")


def expected_text(call: Call) -> str | None:
    """Return the text of the error of this call, if its handler gets as far as failing."""
    if call.fails == "error":
        return f"planned {call.number}"
    if call.fails == "bug":
        return "internal error"
    return "subscription ended" if call.kind == "subscription" else None
