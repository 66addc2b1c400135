"""What interop tests share: the settings that each is played in, and peers that are here and run.

A test that takes ``setting`` is played in settings of all kinds of peers, transports and directions, and one that takes
``kind`` and ``transport`` over those of each peer: by pairs with the tests of its module, so that each test has every
kind, transport and direction. With ``RSOCKET_TRIO_ALL_CASES`` in the environment it is played in all of them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any

import pytest

from tests.interop.both_ways import Setting
from tests.interop.orders_peers import missing, shared_orders
from tests.interop.peers import KINDS, TRANSPORTS, end_shared, require_peer, shared_peer
from tests.missing import require
from tests.pairs import by_pairs

PEERS = [(kind, transport) for kind in KINDS for transport in TRANSPORTS[kind]]
SETTINGS = [Setting(*peer, we_ask) for peer in PEERS for we_ask in (True, False)]


# Where a peer is known to fail, so that the test of it must fail too. Every row is a defect of README.md.
NO_PUSH = "rsocket-js: metadata push is not implemented"
NO_PUSH_RECEIVED = "rsocket-js: receiving a metadata push closes the connection"
NO_EMPTY_ITEMS = "rsocket-py: an item without content is sent without its NEXT flag, so it is none"


def python(setting: Setting) -> bool:
    return setting.kind == "py"


def python_serves(setting: Setting) -> bool:
    return python(setting) and setting.we_ask


def javascript_serves(setting: Setting) -> bool:
    return setting.kind == "js" and setting.we_ask


def javascript_asks(setting: Setting) -> bool:
    return setting.kind == "js" and not setting.we_ask


# fmt: off
DEFECTS: tuple[tuple[str, Callable[[Setting], bool], str], ...] = (
    #  test                                  where              what is known
    ("test_metadata_is_pushed",              javascript_asks,   NO_PUSH),
    ("test_metadata_is_pushed",              javascript_serves, NO_PUSH_RECEIVED),
    ("test_an_empty_item_is_an_item",        python_serves,     NO_EMPTY_ITEMS),
    ("test_an_empty_message_is_a_message",   python,            NO_EMPTY_ITEMS),
)
# fmt: on


def defect_in(test: str, setting: Setting) -> str | None:
    """Return why this test can't pass in this setting, if it can't."""
    return next((reason for name, where, reason in DEFECTS if name == test and where(setting)), None)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    name = metafunc.function.__name__
    if "setting" in metafunc.fixturenames:
        settings = [Setting(*row) for test, *row in setting_rows(metafunc.module) if test == name]
        metafunc.parametrize("setting", [played(name, setting) for setting in settings])
    elif "transport" in metafunc.fixturenames and metafunc.definition.get_closest_marker("parametrize") is None:
        metafunc.parametrize(("kind", "transport"), [row for test, *row in peer_rows(metafunc.module) if test == name])


@cache
def setting_rows(module: ModuleType) -> list[tuple[Any, ...]]:
    tests = tests_with("setting", module)
    known = [
        (test, *next(setting for setting in SETTINGS if where(setting)).row)
        for test, where, _ in DEFECTS
        if test in tests
    ]
    return by_pairs([(test, *setting.row) for test in tests for setting in SETTINGS], known)


@cache
def peer_rows(module: ModuleType) -> list[tuple[Any, ...]]:
    return by_pairs([(test, *peer) for test in tests_with("transport", module) for peer in PEERS])


def tests_with(argument: str, module: ModuleType) -> list[str]:
    """Return the tests of a module that take this."""
    tests = [name for name in vars(module) if name.startswith("test_")]
    return [name for name in tests if argument in inspect.signature(getattr(module, name)).parameters]


def played(test: str, setting: Setting) -> Any:
    """The setting; where the peer is known to fail, the test must fail."""
    reason = defect_in(test, setting)
    marks = () if reason is None else (pytest.mark.xfail(reason=reason, strict=True),)
    return pytest.param(setting, id=str(setting), marks=marks)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Have the peer run that the test needs, before anything looks at what the test leaves behind.

    A skip from inside Trio's run would lose the reason.
    """
    params: dict[str, Any] = item.callspec.params if hasattr(item, "callspec") else {}
    if "orders" in params:
        require(missing(params["orders"]))
        shared_orders(params["orders"])
    kind = params["setting"].kind if "setting" in params else params.get("kind")
    if kind is not None:
        require_peer(kind)
        shared_peer(kind)


def pytest_sessionfinish() -> None:
    end_shared()
