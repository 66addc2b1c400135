"""The messages of the typed workload: an order, its receipt, and the same as messages of protobuf."""

from __future__ import annotations

from typing import Any

import attrs

NAMESPACE = "orders"
ROUTE = "orders.place"


@attrs.frozen(slots=False)  # with a dictionary, which ``json`` takes as it is
class Order:
    """The request."""

    symbol: str
    amount: int
    note: str


@attrs.frozen(slots=False)
class Receipt:
    """The answer."""

    id: str
    total: int


ORDER = Order("ACME", 12, "deliver to the back door")
RECEIPT = Receipt("ACME-12", 1200)


def total(amount: int) -> int:
    """The price of so many."""
    return 100 * amount


def protobuf() -> tuple[Any, Any]:
    """``Order`` and ``Receipt`` as classes of protobuf, with the same fields."""
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message_factory import GetMessageClass

    kinds = {"str": FieldDescriptorProto.TYPE_STRING, "int": FieldDescriptorProto.TYPE_INT64}
    file = FileDescriptorProto(name="orders.proto", package="bench", syntax="proto3")
    for of in (Order, Receipt):
        message = file.message_type.add(name=of.__name__)
        for number, field in enumerate(attrs.fields(of), 1):
            message.field.add(
                name=field.name,
                number=number,
                type=kinds[str(field.type)],
                label=FieldDescriptorProto.LABEL_OPTIONAL,
            )
    pool = DescriptorPool()
    pool.Add(file)
    order, receipt = (GetMessageClass(pool.FindMessageTypeByName(f"bench.{of.__name__}")) for of in (Order, Receipt))
    return order, receipt
