"""Answers on a stream: one item and its completion, in one frame or in two, whole or in fragments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import attrs

from rsocket_trio.conformance.notation import (
    ANYTHING,
    Anything,
    Argument,
    NotationError,
    Pattern,
    Template,
    Unfit,
)

WHOLE: Final = {"last": (True, True), "item": (True, False), "item_more": (False, False), "more": (False, False)}
"""The frames of an answer by the names of their templates: whether each ends the item, and whether the stream."""
DESCRIBED: Final = {
    "last_described": (True, True),
    "item_described": (True, False),
    "item_more_described": (False, False),
    "more_described": (False, False),
}
"""The same for frames with metadata."""
REST: Final = {"rest": (True, False), "rest_last": (True, True), "rest_described": (True, False)}
"""The same for what only the fragments behind the first one can be."""
WITH_METADATA: Final = 3
"""Arguments of an answer with metadata: stream id, metadata, data."""


@attrs.define(eq=False)
class Answer:
    """An answer that is expected, and how much of it has come."""

    stream_id: int
    metadata: bytes | None
    data: bytes | None
    """``None`` if it may be any."""
    pattern: Pattern
    """The answer in one frame."""
    templates: Mapping[str, Template]
    """The frames of the dialect."""
    is_over: bool = False
    _forms: Mapping[str, tuple[bool, bool]] = attrs.field(factory=lambda: {**WHOLE, **DESCRIBED})
    _got_metadata: bytes | None = None
    _got_size: int = 0
    """Bytes of data that have come."""

    @classmethod
    def parse(cls, templates: Mapping[str, Template], arguments: Sequence[Argument]) -> Answer:
        """Make one of a stream id, metadata if there is any, and data. Raise ``NotationError`` for other arguments."""
        is_described = len(arguments) == WITH_METADATA
        name = "last_described" if is_described else "last"
        if name not in templates:
            raise NotationError(f"the dialect has no frame {name!r}")
        try:
            pattern = templates[name].fill(arguments)
        except Unfit:
            # It takes more than one frame.
            pattern = templates[name].fill([*arguments[:-1], ANYTHING])
        stream_id, data = arguments[0], arguments[-1]
        metadata = arguments[1] if is_described else None
        if not isinstance(stream_id, int) or not isinstance(metadata, bytes | None):
            raise NotationError("an answer has its stream id, its metadata if there is any, and its data")
        wanted = data if isinstance(data, bytes) else None
        assert wanted is not None or isinstance(data, Anything)
        return cls(stream_id, metadata, wanted, pattern, templates)

    def take(self, frame: bytes) -> bool:
        """Return whether the frame belongs to the answer, as the next part of it. ``is_over`` tells of the last one."""
        if not self._forms:
            self.is_over = self.templates["complete"].fill([self.stream_id]).fits(frame)
            return self.is_over
        for name, (ends_item, completes) in self._forms.items():
            template = self.templates.get(name)
            parts = None if template is None else template.parts(self.stream_id, frame)
            if parts is None:
                continue
            metadata, data = parts
            metadata = self._got_metadata if metadata is None else (self._got_metadata or b"") + metadata
            if not self._is_right(metadata, data, is_whole=ends_item):
                return False
            self._got_metadata, self.is_over = metadata, completes
            self._got_size += len(data)
            self._forms = {} if ends_item else {**WHOLE, **DESCRIBED, **REST}
            return True
        return False

    def _is_right(self, metadata: bytes | None, data: bytes, *, is_whole: bool) -> bool:
        """Return whether this is what is expected, or a part of it: metadata is whole before data begins."""
        size = self._got_size + len(data)
        if (is_whole or size) and metadata != self.metadata:
            return False
        if metadata is not None and not (self.metadata or b"").startswith(metadata):
            return False
        if self.data is None:
            return True
        return self.data.startswith(data, self._got_size) and (size == len(self.data) or not is_whole)
