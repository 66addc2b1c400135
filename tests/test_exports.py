"""The public names are exactly the listed ones, and each of them says that it lives at the top."""

from __future__ import annotations

import importlib
import types

import rsocket_trio

PUBLIC = {
    # What users write
    *(
        "Payload",
        "PayloadLike",
        "Responder",
        "ResumeOptions",
        "open_connection",
        "open_connection_over",
        "open_shared",
        "run",
        "serve",
        "serve_stream",
    ),
    *("current_call", "current_connection", "current_user", "connect_forever", "open_pool", "forwarding"),
    # What they are given, and what they configure
    *("Connection", "Channel", "Incoming", "Outgoing", "Limits", "Lease", "Keepalive", "Setup", "MetadataPush", "Call"),
    *("StreamuxOptions", "ReconnectingClient", "Pool", "Backoff", "Credentials"),
    # Errors
    *("RSocketError", "StreamError", "SetupError", "ApplicationError", "Rejected", "Canceled", "Invalid"),
    *("RejectedSetup", "InvalidSetup", "UnsupportedSetup", "NegotiationFailed", "RejectedResume"),
    *("ConnectionClosed", "ConnectionLost", "ProtocolError", "LocalProtocolError", "RemoteProtocolError"),
    *("Drained", "Unsupported"),
}

PACKAGES = ("", ".services", ".metadata", ".testing", ".replay", ".capture", ".loadgen")


def test_the_public_names_are_exactly_the_listed_ones() -> None:
    assert set(rsocket_trio.__all__) == PUBLIC
    assert len(rsocket_trio.__all__) == len(PUBLIC)


def test_nothing_else_is_bound_at_the_top() -> None:
    bound = {
        name
        for name, thing in vars(rsocket_trio).items()
        if not name.startswith("_") and not isinstance(thing, types.ModuleType)
    }

    assert bound - PUBLIC <= {"annotations"}


def test_classes_are_shown_where_users_meet_them() -> None:
    homes = {name: thing.__module__ for name in PUBLIC if isinstance(thing := getattr(rsocket_trio, name), type)}

    assert set(homes.values()) == {"rsocket_trio"}


def test_a_public_name_means_one_thing_in_all_packages() -> None:
    meanings: dict[str, set[int]] = {}
    for package in PACKAGES:
        module = importlib.import_module(f"rsocket_trio{package}")
        for name in module.__all__:
            if not isinstance(thing := getattr(module, name), types.FunctionType):
                meanings.setdefault(name, set()).add(id(thing))

    assert {name for name, things in meanings.items() if len(things) > 1} == set()
