"""What is missing skips a test on a user's machine, and fails it where CI is set."""

from __future__ import annotations

import pytest

from tests.missing import require


def test_nothing_missing_lets_the_test_go_on() -> None:
    require(None)


@pytest.mark.parametrize(("ci", "outcome"), [("", pytest.skip.Exception), ("true", pytest.fail.Exception)])
def test_what_is_missing_skips_or_fails(ci: str, outcome: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", ci)

    with pytest.raises(outcome, match="no such peer"):
        require("no such peer")
