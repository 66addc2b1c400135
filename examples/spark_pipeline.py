"""A market from end to end: a service takes trades, Spark turns them into bars of a minute, the service answers them.

    python examples/spark_pipeline.py            a server as a process, traders, and a Spark job; ends by itself
    python examples/spark_pipeline.py server     the server alone, until Ctrl-C

Traders call ``Market``, a typed service, which appends their trades to a log that can be replayed. Spark reads that log
as a stream, cuts it into windows of a minute, and the bars go back into the server, where each counts exactly once. The
job runs twice, as one that is started every hour would, and goes on where it was. In the end the bars are a view of
SQL, and the service tells them to anybody who asks.

Needs `pip install '.[spark]'`, and Java 17 or newer, or the extra `spark-jre`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

import trio

from rsocket_trio import Responder, open_connection, serve
from rsocket_trio.replay import Ledger, Log, add_sink, add_source
from rsocket_trio.services import Service, Stream, request_response, request_stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SYMBOLS = {"ADA": 100, "BOB": 40, "EVE": 7}
PARTITIONS = 2
MINUTES = 5
TRADES_A_MINUTE = 40
SETTINGS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xss2m",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


# The service


@dataclass
class Trade:
    symbol: str
    price: int
    size: int
    at: str


@dataclass
class Bar:
    minute: str
    symbol: str
    high: int
    low: int
    volume: int


class Market(Service, Protocol, route="market"):
    """The requests of traders and readers."""

    @request_response
    async def place(self, trades: list[Trade]) -> int: ...
    @request_stream
    def bars(self, symbol: str) -> Stream[Bar]: ...


class MarketServer:
    """The market: a log of trades, which Spark reads, and a log of bars, which it writes."""

    def __init__(self) -> None:
        # With a path a Log is a file, and so is the ledger of its sink; a KafkaLog and a KafkaLedger are in topics.
        self.trades = Log(partitions=PARTITIONS)
        self.results = Log()

    @request_response
    async def place(self, trades: list[Trade]) -> int:
        """Keep trades. Return how many there are now."""
        for trade in trades:
            # Trades of a symbol stay in order: they are all in one partition.
            key = trade.symbol.encode()
            await self.trades.append(json.dumps(asdict(trade)), partition=zlib.crc32(key) % PARTITIONS, key=key)
        return sum(self.trades.bounds(partition)[1] for partition in self.trades.partitions())

    @request_stream
    async def bars(self, symbol: str) -> AsyncIterator[Bar]:
        """Yield the bars of a symbol."""
        async with aclosing(self.results.read(0, *self.results.bounds(0))) as records:
            async for record in records:
                assert record.data is not None  # each row is a bar
                bar = Bar(**json.loads(record.data))
                if bar.symbol == symbol:
                    yield bar


async def run_server() -> None:
    """Serve the market: to traders, and to Spark."""
    market, responder = MarketServer(), Responder()
    responder.serve_as(Market, market)
    add_source(responder, "trades", market.trades)
    add_sink(responder, "bars", Ledger(market.results))
    add_source(responder, "bars.log", market.results)
    async with market.trades, market.results, trio.open_nursery() as nursery:
        [uri] = await nursery.start(partial(serve, responder, ["tcp://127.0.0.1:0"]))
        print(f"listening {uri}", flush=True)


# The traders and the readers


def trades_of(minutes: range) -> Iterator[Trade]:
    """Yield the trades of some minutes of a morning."""
    for minute in minutes:
        for second in range(TRADES_A_MINUTE):
            for place, (symbol, price) in enumerate(SYMBOLS.items()):
                number = (minute * TRADES_A_MINUTE + second) * len(SYMBOLS) + place + 1
                at = f"2026-01-05T09:{minute:02}:{second:02}Z"
                yield Trade(symbol, price + number % 7, 1 + number % 3, at)


async def trade(uri: str, minutes: range, *, close: bool = False) -> int:
    """Place the trades of some minutes; with ``close`` also one that is so late that it closes all bars before it."""
    async with open_connection(uri) as connection:
        market = connection.remote(Market)
        count = await market.place(list(trades_of(minutes)))
        if close:
            count = await market.place([Trade("END", 0, 0, "2026-01-05T09:59:00Z")])
    return count


async def read_bars(uri: str) -> list[Bar]:
    """Ask the service for all bars."""
    bars: list[Bar] = []
    async with open_connection(uri) as connection:
        for symbol in SYMBOLS:
            async with connection.remote(Market).bars(symbol) as stream:
                bars += [bar async for bar in stream]
    return sorted(bars, key=lambda bar: (bar.minute, bar.symbol))


# The job


@contextmanager
def spark_session(uri: str, scratch: str) -> Iterator[SparkSession]:
    """Start Spark for the block, with the bars of the server as the view ``bars``."""
    from pyspark.sql import SparkSession

    from rsocket_trio.spark import create_view, ensure_java, register

    ensure_java()
    os.environ["PYSPARK_PYTHON"] = sys.executable  # Spark's workers need this Python, with this package
    builder = SparkSession.builder.master("local[2]").appName("bars")
    for key, value in {**SETTINGS, "spark.sql.warehouse.dir": scratch}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    register(spark)
    create_view(spark, "bars", path=uri, route="bars.log", positions="server")
    try:
        yield spark
    finally:
        spark.catalog.dropTempView("bars")
        spark.stop()


def make_bars(spark: SparkSession, uri: str, checkpoint: str) -> None:
    """Turn the trades that came since the last time into bars, batch after batch."""
    from pyspark.sql import functions as f

    trades = (
        spark.readStream.format("rsocket")
        .options(route="trades", positions="server", startingPosition="earliest", maxRowsPerTrigger=400)
        .load(uri)
        # Decoded in the JVM: nothing of this runs in Python.
        .select(
            f.from_json(f.col("data").cast("string"), "symbol STRING, price INT, size INT, at TIMESTAMP").alias("t")
        )
        .select("t.*")
        .withWatermark("at", "1 minute")
    )
    bars = trades.groupBy(f.window("at", "1 minute"), "symbol").agg(
        f.max("price").alias("high"), f.min("price").alias("low"), f.sum("size").alias("volume")
    )
    bar = f.struct(f.date_format("window.start", "HH:mm").alias("minute"), "symbol", "high", "low", "volume")
    query = (
        bars.select(f.to_json(bar).alias("data"), f.col("symbol").alias("key"))
        .writeStream.format("rsocket")
        .options(route="bars", delivery="exactlyOnce", checkpointLocation=checkpoint)
        # A bar is written when its minute and that of the watermark are over.
        .outputMode("append")
        .trigger(availableNow=True)
        .start(uri)
    )
    query.awaitTermination()


def ask_the_view(spark: SparkSession) -> list[str]:
    """Ask the view of the bars for the day's figures of each symbol."""
    rows = spark.sql(
        """
        SELECT symbol, min(low) AS low, max(high) AS high, sum(volume) AS volume, count(*) AS bars
        FROM (SELECT from_json(string(data), 'symbol STRING, high INT, low INT, volume INT') AS bar FROM bars)
        LATERAL VIEW inline(array(bar)) AS symbol, high, low, volume
        GROUP BY symbol ORDER BY symbol
        """
    )
    return [f"{row.symbol}: {row.low} to {row.high}, {row.volume} traded in {row.bars} bars" for row in rows.collect()]


def main() -> None:
    if sys.argv[1:] == ["server"]:
        try:
            trio.run(run_server)
        except* KeyboardInterrupt:
            print("stopped")
        return
    command = [sys.executable, __file__, "server"]
    with (
        tempfile.TemporaryDirectory() as scratch,
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server,
    ):
        try:
            assert server.stdout is not None
            uri = server.stdout.readline().split()[1]
            with spark_session(uri, scratch) as spark:
                trio.run(trade, uri, range(3))
                make_bars(spark, uri, os.path.join(scratch, "checkpoint"))
                print(f"{len(trio.run(read_bars, uri))} bars are complete after three minutes")
                trio.run(partial(trade, uri, range(3, MINUTES), close=True))
                make_bars(spark, uri, os.path.join(scratch, "checkpoint"))
                lines = ask_the_view(spark)
            bars = trio.run(read_bars, uri)
        finally:
            server.terminate()
    for bar in bars:
        print("{minute} {symbol}: {low} to {high}, {volume} traded".format(**asdict(bar)))
    print("the day in SQL:", *lines, sep="\n")


if __name__ == "__main__":
    main()
