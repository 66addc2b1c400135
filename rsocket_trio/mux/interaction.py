"""The ways in which a requester can ask: what every protocol's streams are made of."""

from __future__ import annotations

import enum


class Interaction(enum.StrEnum):
    """What a stream is for. The value is the name that users know it by, and the member equals it."""

    REQUEST_RESPONSE = "request_response"
    FIRE_AND_FORGET = "fire_and_forget"
    REQUEST_STREAM = "request_stream"
    REQUEST_SUBSCRIPTION = "request_subscription"
    REQUEST_CHANNEL = "request_channel"

    # A text keeps its hash, which is much cheaper than Enum's own hash of the name.
    __hash__ = str.__hash__
