"""Options are declared once, and every function that takes them shows them as if it had spelled them out."""

from __future__ import annotations

import inspect
import pydoc
from collections.abc import Callable
from typing import Annotated, Any, Generic, TypedDict, TypeVar, Unpack

import pytest

import rsocket_trio
from rsocket_trio.client.options import ConnectionOptions, StreamOptions
from rsocket_trio.server.serve import ServeOptions, StreamServeOptions
from rsocket_trio.signatures import completed, declared, shows_options

T = TypeVar("T")
U = TypeVar("U")
SIZE = 5


class Options(TypedDict, total=False):
    """Two options."""

    name: Annotated[str | None, None]
    size: Annotated[int, SIZE]


class GenericOptions(Options, Generic[T, U], total=False):
    """Two more, whose types are open."""

    setup: Annotated[T, b"nothing"]
    seconds: Annotated[U, 1.0]


@shows_options
def make(place: str, *, task: int = 0, **options: Unpack[Options]) -> dict[str, Any]:
    """Make something."""
    return dict(completed(make, options))


@shows_options
async def make_later(place: str, **options: Unpack[GenericOptions[bytes, float]]) -> dict[str, Any]:
    """Make something later."""
    return dict(completed(make_later, options))


def test_a_signature_has_every_option_with_its_type_and_default() -> None:
    assert str(inspect.signature(make)) == (
        "(place: 'str', *, name: 'str | None' = None, size: 'int' = 5, task: 'int' = 0) -> 'dict[str, Any]'"
    )
    assert inspect.signature(make_later).parameters["setup"].annotation == "bytes"
    assert inspect.signature(make_later).parameters["seconds"].annotation == "float"
    assert inspect.iscoroutinefunction(make_later)
    assert "size: 'int' = 5" in pydoc.render_doc(make, renderer=pydoc.TextDoc())


def test_options_that_were_not_given_have_their_defaults() -> None:
    assert make("here", name="a") == {"name": "a", "size": 5}


async def test_an_unknown_option_is_a_type_error_as_pythons_own() -> None:
    wrong: dict[str, Any] = {"sise": 3}

    # Python 3.13 adds which name may be meant.
    with pytest.raises(TypeError, match=r"^make\(\) got an unexpected keyword argument 'sise'(\.|$)"):
        make("here", **wrong)
    with pytest.raises(TypeError, match=r"^make_later\(\) got an unexpected keyword argument 'sise'(\.|$)"):
        await make_later("here", **wrong)
    with pytest.raises(TypeError, match=r"^make\(\) missing 1 required positional argument: 'place'$"):
        make(size=3)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("function", "declaration", "others"),
    [
        (rsocket_trio.open_connection, ConnectionOptions, ["uri"]),
        (rsocket_trio.open_connection_over, StreamOptions, ["stream"]),
        (rsocket_trio.serve, ServeOptions, ["responder", "uris", "signals", "task_status"]),
        (rsocket_trio.serve_stream, StreamServeOptions, ["responder", "stream", "path", "headers", "task_status"]),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_the_public_functions_show_what_is_declared(
    function: Callable[..., object], declaration: Any, others: list[str]
) -> None:
    shown = inspect.signature(function).parameters

    assert [name for name in shown if name in others] == others
    assert {name: shown[name].default for name in shown if name not in others} == {
        name: default for name, (_, default) in declared(declaration).items()
    }
    assert all(shown[name].kind is inspect.Parameter.KEYWORD_ONLY for name in declared(declaration))
    assert "SetupT" not in {each.annotation for each in shown.values()}
