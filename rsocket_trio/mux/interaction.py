"""The ways in which a requester can ask: what every protocol's streams are made of."""

from __future__ import annotations

import enum


class Interaction(enum.Enum):
    """What a stream is for. The value is the name that users know it by."""

    REQUEST_RESPONSE = "request_response"
    FIRE_AND_FORGET = "fire_and_forget"
    REQUEST_STREAM = "request_stream"
    REQUEST_SUBSCRIPTION = "request_subscription"
    REQUEST_CHANNEL = "request_channel"

    # Members are singletons, so identity is enough, and much cheaper than Enum's own hash of the name.
    __hash__ = object.__hash__
