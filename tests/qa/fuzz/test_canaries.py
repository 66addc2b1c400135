"""The judge is judged: what looks for faults finds those that were planted."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import attrs
import pytest
from hypothesis import Phase

from qa.fuzz.conversations import converse
from qa.fuzz.decoders import TARGETS, fuzz
from qa.fuzz.model import run_machine
from qa.fuzz.targets import Finding, Target
from rsocket_trio.errors import RemoteProtocolError
from rsocket_trio.mux.framing import Framing24
from rsocket_trio.mux.reassembly import PartialPayload
from rsocket_trio.payload import Payload
from rsocket_trio.rsocket.layouts import v1_0 as layout_1_0
from rsocket_trio.rsocket.stream_receiver import StreamReceiver
from rsocket_trio.rsocket.stream_sender import StreamSender
from rsocket_trio.rsocket.stream_table import StreamTable

RUNS = 20_000


def findings(name: str, **changes: Any) -> list[Finding]:
    return fuzz(attrs.evolve(TARGETS[name], **changes), RUNS, 1).findings


# Decoders with one bound less


def test_metadata_that_runs_past_its_frame_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def unbounded(shape: layout_1_0.LengthShape, data: bytes, offset: int) -> tuple[bytes, int, int]:
        start = offset + 3
        size = int.from_bytes(data[offset:start], "big")
        return data[start : start + size], 0, start + size

    monkeypatch.setattr(layout_1_0.LengthShape, "metadata_at", unbounded)

    assert findings("rsocket_1_0")


def test_a_splitter_that_depends_on_where_it_is_cut_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    feed = Framing24.feed
    monkeypatch.setattr(Framing24, "feed", lambda self, chunk: feed(self, chunk) if len(chunk) != 3 else [])

    assert findings("framing_24")


# Errors, slowness and encoders


def raising(error: Exception) -> Callable[[Target], Callable[[bytes], Any]]:
    def make(target: Target) -> Callable[[bytes], Any]:
        def read(data: bytes) -> Any:
            if len(data) == 11:
                raise error
            return target.read(data)

        return read

    return make


@pytest.mark.parametrize(
    "error",
    [IndexError("index out of range"), RemoteProtocolError("x"), UnicodeDecodeError("ascii", b"", 0, 1, "no")],
    ids=lambda error: type(error).__name__,
)
def test_an_error_that_is_not_documented_is_found(error: Exception) -> None:
    assert findings("rsocket_1_0", read=raising(error)(TARGETS["rsocket_1_0"]))


def test_an_error_of_endless_text_is_found() -> None:
    assert findings("composite", read=raising(RemoteProtocolError("x" * 2000))(TARGETS["composite"]))


def test_a_place_outside_of_the_bytes_is_found() -> None:
    assert findings("composite", read=raising(RemoteProtocolError("x", offset=12))(TARGETS["composite"]))


def test_a_decoder_that_is_slow_for_some_bytes_is_found() -> None:
    target = TARGETS["routing"]

    def read(data: bytes) -> Any:
        end = time.thread_time() + 0.02 * (data == target.seeds[0])
        while time.thread_time() < end:
            pass
        return target.read(data)

    slow = attrs.evolve(target, read=read)

    assert slow.check(target.seeds[1])
    with pytest.raises(Finding, match="took more than 10 ms"):
        slow.check(target.seeds[0])


def test_an_encoder_that_loses_a_field_is_found() -> None:
    target = TARGETS["rsocket_1_0"]

    assert findings("rsocket_1_0", write=lambda frame: target.write(frame)[:-1] + b"\0")


def test_an_encoder_that_says_what_may_not_be_said_is_found() -> None:
    assert findings("rsocket_1_0", unsayable=lambda frame: True)


# Sessions and pairs of them


def forget_fragments(table: StreamTable, stream: Any) -> None:
    stream.assembly = None


def keep_what_is_over(table: StreamTable, lane: Any) -> None:
    """A stream that has ended stays."""


def go_on_after_cancel(self: StreamReceiver, stream: Any) -> None:
    stream.request = None
    self.table.end(stream)


def never_use_up_room(self: StreamSender, stream: Any, payload: Any, *, complete: bool = False) -> None:
    send_item(self, stream, payload, complete=complete)
    stream.room += 1


def never_use_up_grants(self: StreamReceiver, stream: Any, payload: Any, complete: bool) -> None:
    item(self, stream, payload, complete)
    stream.granted += 1


def lose_some_items(self: StreamReceiver, stream: Any, payload: Any, complete: bool) -> None:
    if len(payload.data) != 64 or complete:
        item(self, stream, payload, complete)


def lose_some_metadata(self: PartialPayload) -> Payload:
    payload = join(self)
    return Payload(payload.data, payload.metadata and payload.metadata[:-1])


def cancel_in_silence(self: StreamSender, stream: Any) -> None:
    self._outbox.discard(stream)
    self._table.end(stream)


send_item, item, join = StreamSender.send_item, StreamReceiver.take_item, PartialPayload.join


@pytest.mark.parametrize(
    ("owner", "name", "mutant"),
    [
        (StreamTable, "drop_assembly", forget_fragments),
        (StreamTable, "forget", keep_what_is_over),
        (StreamReceiver, "_drop", go_on_after_cancel),
    ],
    ids=lambda part: getattr(part, "__name__", part),
)
def test_a_session_that_keeps_too_much_is_found_by_conversations(
    owner: type, name: str, mutant: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, mutant)

    assert next(converse(3000, 1), None) is not None


@pytest.mark.parametrize(
    ("owner", "name", "mutant"),
    [
        (StreamTable, "forget", keep_what_is_over),
        (StreamSender, "send_item", never_use_up_room),
        (StreamReceiver, "take_item", never_use_up_grants),
        (StreamReceiver, "take_item", lose_some_items),
        (PartialPayload, "join", lose_some_metadata),
        (StreamSender, "send_cancel", cancel_in_silence),
    ],
    ids=lambda part: getattr(part, "__name__", part),
)
def test_a_session_that_does_otherwise_than_the_model_is_found(
    owner: type, name: str, mutant: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, mutant)

    with pytest.raises(AssertionError):
        run_machine("rsocket/1.0", 100, 50, derandomize=True, phases=[Phase.generate])
