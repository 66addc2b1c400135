"""Text is text: where ``str`` is a whole payload it is the payload's UTF-8, in and out, whatever the MIME type."""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal, NewType, Optional

import msgspec
import pydantic
import pytest

from rsocket_trio import Invalid, Payload, Responder
from rsocket_trio.metadata import Entry, encode_composite
from rsocket_trio.metadata.mime import MIME_TYPE, encode_data_mime
from rsocket_trio.services import DecodeError, Receiving, TypedChannel
from tests.connection.pairs import connected_pair
from tests.rows import Rows

MIMES = ("application/octet-stream", "application/json", "application/cbor", "text/plain", "image/png")
"""The default, two of codecs, that of the text codec, and one that no codec covers."""

Name = NewType("Name", str)
Short = Annotated[str, msgspec.Meta(max_length=3)]
Brief = Annotated[str, pydantic.Field(max_length=3)]
Trimmed = Annotated[str, pydantic.StringConstraints(strip_whitespace=True, to_upper=True)]
ShortName = NewType("ShortName", Short)
BriefName = NewType("BriefName", Brief)
TEXTS: tuple[Any, ...] = (
    *(str, Name, Short, Brief, ShortName, BriefName, Annotated[str, "a name"]),
    *(str | None, Optional[str], Short | None, BriefName | None, Annotated[str | None, "perhaps"]),  # noqa: UP045
)


class Color(enum.Enum):
    RED = "red"


class Word(enum.StrEnum):
    HI = "hi"


def annotated(function: Any, **kinds: Any) -> Any:
    """Return the function with these annotations alone; ``result`` is that of the answer."""
    names = {"return" if name == "result" else name: kind for name, kind in kinds.items()}
    function.__annotations__ = {name: kind for name, kind in names.items() if kind is not ...}
    return function


def returning(value: object, *, takes: Any, result: Any) -> Any:
    """Return a handler that takes and gives these types and answers with the value; ``...`` is no annotation."""

    async def answer(data: Any) -> Any:
        return value

    return annotated(answer, data=takes, result=result)


# The argument of a handler


@pytest.mark.parametrize("mime", MIMES)
async def test_a_text_reaches_a_handler_as_it_was_given_to_the_request(mime: str) -> None:
    responder = Responder()
    seen: list[object] = []
    for number, kind in enumerate(TEXTS):

        async def greet(name: Any) -> str:
            seen.append(name)
            return f"Hello {name}"

        responder.request_response(f"greet{number}")(annotated(greet, name=kind, result=str))

    async with connected_pair(responder, data_mime=mime) as pair:
        for number, kind in enumerate(TEXTS):
            with Rows() as row, row(str(kind)):
                answer = await pair.client.request_response("Zoë", route=f"greet{number}", reply=str)
                assert (answer, seen.pop()) == ("Hello Zoë", "Zoë")


async def test_a_text_needs_no_codec_for_the_type_that_its_request_names() -> None:
    responder = Responder()

    @responder.request_response("greet")
    async def greet(name: str) -> str:
        return f"Hello {name}"

    @responder.request_channel("greet")
    async def greet_all(names: Receiving[str]) -> AsyncIterator[str]:
        async for name in names:
            yield f"Hello {name}"

    named = encode_composite([Entry(MIME_TYPE, encode_data_mime("application/x"))])
    async with connected_pair(responder) as pair:
        request = Payload("Ada", named)
        assert await pair.client.request_response(request, route="greet", reply=str) == "Hello Ada"
        async with pair.client.request_channel(request, route="greet", items=str) as channel:
            await channel.send_eof()
            assert [item async for item in channel] == ["Hello Ada"]


async def test_without_data_a_text_is_its_default_or_none_or_empty_in_this_order() -> None:
    responder = Responder()

    @responder.request_response("default")
    async def default(name: str = "nobody") -> str:
        return repr(name)

    @responder.request_response("default-or-none")
    async def default_or_none(name: str | None = "nobody") -> str:
        return repr(name)

    @responder.request_response("none")
    async def none(name: str | None) -> str:
        return repr(name)

    @responder.request_response("empty")
    async def empty(name: str) -> str:
        return repr(name)

    @responder.request_response("not-empty")
    async def not_empty(name: Annotated[str, msgspec.Meta(min_length=1)]) -> str:
        return repr(name)

    async with connected_pair(responder) as pair:
        ask = pair.client.request_response
        for nothing in ("", b"", None, Payload()):
            answers = [
                await ask(nothing, route=route, reply=str) for route in ("default", "default-or-none", "none", "empty")
            ]
            assert answers == ["'nobody'", "'nobody'", "None", "''"]
            with pytest.raises(Invalid, match=r"^\$: expected str of length >= 1$"):
                await ask(nothing, route="not-empty")


CONSTRAINED: tuple[tuple[Any, str, str], ...] = (
    (Short, "four", "$: expected str of length <= 3"),
    (ShortName, "four", "$: expected str of length <= 3"),
    (Short | None, "four", "$: expected str of length <= 3"),
    (Annotated[str, msgspec.Meta(pattern="^[a-z]+$")], "A", "$: expected str matching regex '^[a-z]+$'"),
    (Brief, "four", "$: string should have at most 3 characters"),
    (BriefName, "four", "$: string should have at most 3 characters"),
    (BriefName | None, "four", "$: string should have at most 3 characters"),
)


async def test_the_constraints_of_a_text_are_checked_on_the_text_at_both_ends() -> None:
    responder = Responder()

    @responder.request_response("echo")
    async def echo(request: Payload) -> bytes:
        return request.data

    async def take(name: Any) -> Any:
        return name

    for number, (kind, _, _) in enumerate(CONSTRAINED):
        responder.request_response(f"take{number}")(annotated(returning(b"", takes=kind, result=...), data=kind))

    responder.request_response("trimmed")(annotated(take, name=Trimmed))
    async with connected_pair(responder) as pair:
        with Rows() as row:
            for number, (kind, text, error) in enumerate(CONSTRAINED):
                with row(f"{kind}, {text}"):
                    with pytest.raises(Invalid) as refused:
                        await pair.client.request_response(text, route=f"take{number}")
                    assert str(refused.value) == error
                    with pytest.raises(DecodeError) as unfit:
                        await pair.client.request_response(text, route="echo", reply=kind)
                    assert str(unfit.value) == error
                    assert await pair.client.request_response("abc", route="echo", reply=kind) == "abc"
        assert await pair.client.request_response(" ada ", route="trimmed", reply=str) == "ADA"


async def test_data_that_is_no_utf_8_is_invalid_at_a_server_and_a_decode_error_at_a_client() -> None:
    responder = Responder()
    data = b"seventeen bytes.." + b"\xff"

    @responder.request_response("take")
    async def take(name: str) -> None:
        raise AssertionError("nothing runs")

    @responder.request_channel("channel")
    async def channel(names: Receiving[str]) -> AsyncIterator[bytes]:
        yield data
        async for _ in names:
            raise AssertionError("nothing comes")

    @responder.request_response("echo")
    async def echo(request: Payload) -> bytes:
        return request.data

    async with connected_pair(responder) as pair:
        with pytest.raises(Invalid, match=r"^\$: not UTF-8 at byte 17$"):
            await pair.client.request_response(data, route="take")
        with pytest.raises(DecodeError, match=r"^\$: not UTF-8 at byte 17$"):
            await pair.client.request_response(data, route="echo", reply=str)
        async with pair.client.request_channel(data, route="channel", items=str) as names:
            with pytest.raises(DecodeError, match=r"^\$: not UTF-8 at byte 17$"):
                await anext(names)
            with pytest.raises(Invalid, match=r"^\$: not UTF-8 at byte 17$"):
                await anext(names)


# Answers and items


@pytest.mark.parametrize("mime", MIMES[:-1])
async def test_the_bytes_of_an_answer_depend_on_its_own_annotation_alone(mime: str) -> None:
    answers: list[tuple[object, Any, bytes]] = [
        *((Word.HI if kind is Word else "hi", kind, b"hi") for kind in (..., Any, object, *TEXTS)),
        *(("hi", kind, b"hi") for kind in (bytes | str, str | bytes | None)),
        (Word.HI, str, b"hi"),
    ]
    if mime in ("application/octet-stream", "application/json"):
        answers += [("hi", kind, b'"hi"') for kind in (str | int, Literal["hi"], Literal["hi"] | None)]
        answers += [(Word.HI, Word, b'"hi"'), (Color.RED, Color, b'"red"'), (Color.RED, ..., b'"red"')]
        answers += [({"a": "hi"}, ..., b'{"a":"hi"}'), (["hi"], list[str], b'["hi"]')]
    taken = (..., Payload, bytes, str, str | None, Any)
    responder = Responder()
    for number, (value, result, _) in enumerate(answers):
        for place, takes in enumerate(taken):
            responder.request_response(f"{number}.{place}")(returning(value, takes=takes, result=result))

    async with connected_pair(responder, data_mime=mime) as pair:
        with Rows() as row:
            for number, (value, result, data) in enumerate(answers):
                for place, takes in enumerate(taken):
                    with row(f"{value!r} -> {result}, takes {takes}"):
                        assert (await pair.client.request_response("x", route=f"{number}.{place}")).data == data


@pytest.mark.parametrize("mime", MIMES)
async def test_items_of_streams_and_channels_are_texts_in_both_directions(mime: str) -> None:
    responder = Responder()
    seen: list[Any] = []

    @responder.request_stream("letters")
    async def letters(word: str) -> AsyncIterator[str]:
        for letter in word:
            yield letter

    @responder.request_channel("upper")
    async def upper(words: Receiving[str | None]) -> AsyncIterator[str | None]:
        async for word in words:
            seen.append(word)
            yield word and word.upper()

    @responder.request_channel("lower")
    async def lower(words: TypedChannel[str, Name]) -> None:
        async for word in words:
            await words.send(Name(word.lower()))

    async with connected_pair(responder, data_mime=mime) as pair:
        async with pair.client.request_stream("hë", route="letters", items=str) as stream:
            assert [letter async for letter in stream] == ["h", "ë"]
        async with pair.client.request_stream("hë", route="letters") as payloads:
            assert [item.data async for item in payloads] == [b"h", "ë".encode()]
        async with pair.client.request_channel("a", route="upper", items=str | None) as channel:
            await channel.send("b")
            await channel.send_many(["", None])
            await channel.send_eof()
            assert [item async for item in channel] == ["A", "B", None, None]
        assert seen == ["a", "b", None, None]
        async with pair.client.request_channel("A", route="lower") as plain:
            await plain.send(b"B")
            await plain.send_eof()
            assert [item.data async for item in plain] == [b"a", b"b"]
