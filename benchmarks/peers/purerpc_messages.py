"""For purerpc: messages are bytes as they are, with the methods that it calls of a protobuf class."""

from __future__ import annotations

from types import SimpleNamespace

from purerpc import Cardinality, RPCSignature


class Raw:
    """Neither builds nor parses anything."""

    DESCRIPTOR = SimpleNamespace(full_name="bench.Raw")
    __slots__ = ("data",)

    def __init__(self, data: bytes = b"") -> None:
        self.data = data

    def ParseFromString(self, data: bytes) -> None:  # noqa: N802, protobuf names it
        self.data = data

    def SerializeToString(self) -> bytes:  # noqa: N802, protobuf names it
        return self.data


SIGNATURES = {
    "echo": RPCSignature(Cardinality.UNARY_UNARY, Raw, Raw),
    "items": RPCSignature(Cardinality.UNARY_STREAM, Raw, Raw),
    "echo_all": RPCSignature(Cardinality.STREAM_STREAM, Raw, Raw),
}
