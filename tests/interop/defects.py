"""Where a peer is known to fail, so that the test of it must fail too. Every row is a defect of README.md."""

from __future__ import annotations

from collections.abc import Callable

from tests.interop.both_ways import Setting

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
