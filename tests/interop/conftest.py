"""What interop tests share: the settings that each is played in, and peers that are here and run.

A test that takes ``setting`` is played in settings of all kinds of peers, transports and directions, and one that takes
``kind`` and ``transport`` over those of each peer: by pairs with the tests of its module, so that each test has every
kind, transport and direction. With ``RSOCKET_TRIO_ALL_CASES`` in the environment it is played in all of them.
"""

from __future__ import annotations

import inspect
from functools import cache
from types import ModuleType
from typing import Any

import pytest

from tests.interop.both_ways import Setting
from tests.interop.defects import DEFECTS, defect_in
from tests.interop.orders_peers import missing, shared_orders
from tests.interop.peers import KINDS, TRANSPORTS, end_shared, require_peer, shared_peer
from tests.missing import require
from tests.pairs import by_pairs

PEERS = [(kind, transport) for kind in KINDS for transport in TRANSPORTS[kind]]
SETTINGS = [Setting(*peer, we_ask) for peer in PEERS for we_ask in (True, False)]


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
