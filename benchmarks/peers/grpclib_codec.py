"""For grpclib: messages are bytes as they are."""

from __future__ import annotations

from typing import Any

from grpclib.encoding.base import CodecBase


class Raw(CodecBase):
    """Neither builds nor parses anything."""

    __content_subtype__ = "raw"

    def encode(self, message: Any, message_type: Any) -> bytes:
        return bytes(message)

    def decode(self, data: bytes, message_type: Any) -> Any:
        return data
