"""Routes that can be read again from any position, and routes that take each row exactly once."""

from __future__ import annotations

from rsocket_trio.replay.elements import Element, Pack, Record, read_source_payload, source_payload
from rsocket_trio.replay.errors import (
    CorruptLog,
    NotStaged,
    NotWritten,
    PositionAhead,
    PositionExpired,
    ReplayError,
    TopicGone,
    UnknownPartition,
)
from rsocket_trio.replay.kafka_ledger import KafkaLedger
from rsocket_trio.replay.kafka_log import KafkaLog
from rsocket_trio.replay.ledger import Commit, Ledger
from rsocket_trio.replay.log import Reader, ReplayableLog, Retention
from rsocket_trio.replay.routes import add_sink, add_source
from rsocket_trio.replay.sqlite_log import Log

__all__ = [
    "Commit",
    "CorruptLog",
    "Element",
    "KafkaLedger",
    "KafkaLog",
    "Ledger",
    "Log",
    "NotStaged",
    "NotWritten",
    "Pack",
    "PositionAhead",
    "PositionExpired",
    "Reader",
    "Record",
    "ReplayError",
    "ReplayableLog",
    "Retention",
    "TopicGone",
    "UnknownPartition",
    "add_sink",
    "add_source",
    "read_source_payload",
    "source_payload",
]
