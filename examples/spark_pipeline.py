"""Trades go into Spark, bars of a minute come out, and each trade counts exactly once.

python examples/spark_pipeline.py            a server in a process of its own, and a Spark job; ends by itself
python examples/spark_pipeline.py server     the server alone, until Ctrl-C

Needs `pip install rsocket-trio[spark]`, and Java 17 or newer, or the extra `spark-jre`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from functools import partial
from typing import Any

import trio

from rsocket_trio import Responder, open_connection, serve
from rsocket_trio.replay import Ledger, MemoryLog, add_sink, add_source

SYMBOLS = {"ADA": 100, "BOB": 40, "EVE": 7}
MINUTES = 5
TRADES_A_MINUTE = 40


async def run_server() -> None:
    """Serve trades that can be replayed, and take bars in that count once."""
    trades, bars = MemoryLog(partitions=2), MemoryLog()
    responder = Responder()
    add_source(responder, "trades", trades)
    add_sink(responder, "bars", Ledger(bars))
    add_source(responder, "bars.log", bars)
    number = 0
    for minute in range(MINUTES):
        for second in range(TRADES_A_MINUTE):
            for partition, (symbol, price) in enumerate(SYMBOLS.items()):
                number += 1
                trade = {"symbol": symbol, "price": price + number % 7, "size": 1 + number % 3}
                trade["at"] = f"2026-01-05T09:{minute:02}:{second:02}Z"
                await trades.append(json.dumps(trade).encode(), partition=partition % 2)
    # What comes later closes the bars before it.
    for partition in trades.partitions():
        await trades.append(
            b'{"symbol": "END", "price": 0, "size": 0, "at": "2026-01-05T09:59:00Z"}', partition=partition
        )
    async with trio.open_nursery() as nursery:
        [uri] = await nursery.start(partial(serve, responder, ["tcp://127.0.0.1:0"]))
        print(f"listening {uri}", flush=True)


def run_job(uri: str, checkpoint: str) -> None:
    """Turn the trades that there are into bars, batch after batch."""
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as f

    from rsocket_trio.spark import ensure_java, register

    ensure_java()
    os.environ["PYSPARK_PYTHON"] = sys.executable  # Spark's workers need this Python, with this package
    builder = SparkSession.builder.master("local[2]").appName("bars")
    for key, value in {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xss2m",
        "spark.log.level": "ERROR",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    register(spark)
    trades = (
        spark.readStream.format("rsocket")
        .options(route="trades", positions="server", startingPosition="earliest", maxRowsPerTrigger="400")
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
    said = f.struct(f.date_format("window.start", "HH:mm").alias("minute"), "symbol", "high", "low", "volume")
    query = (
        bars.select(f.to_json(said).alias("data"), f.col("symbol").alias("key"))
        .writeStream.format("rsocket")
        .options(route="bars", delivery="exactlyOnce", checkpointLocation=checkpoint)
        # A bar is written when its minute and that of the watermark are over.
        .outputMode("append")
        .trigger(availableNow=True)
        .start(uri)
    )
    query.awaitTermination()
    spark.stop()


async def read_bars(uri: str) -> list[dict[str, Any]]:
    """The bars, as any client reads them."""
    async with open_connection(uri) as connection:
        bounds = json.loads((await connection.request_response(route="bars.log.offsets")).data)["0"]
        wanted = {"partition": 0, "from": bounds["earliest"], "to": bounds["latest"]}
        async with connection.request_stream(json.dumps(wanted), route="bars.log") as items:
            return [json.loads(item.data) async for item in items]


def main() -> None:
    if sys.argv[1:] == ["server"]:
        try:
            trio.run(run_server)
        except* KeyboardInterrupt:
            print("stopped")
        return
    command = [sys.executable, __file__, "server"]
    with (
        tempfile.TemporaryDirectory() as checkpoint,
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server,
    ):
        try:
            assert server.stdout is not None
            uri = server.stdout.readline().split()[1]
            run_job(uri, checkpoint)
            bars = trio.run(read_bars, uri)
        finally:
            server.terminate()
    for bar in sorted(bars, key=lambda bar: (bar["minute"], bar["symbol"])):
        print("{minute} {symbol}: {low} to {high}, {volume} traded".format(**bar))
    print(f"{len(bars)} bars, {sum(bar['volume'] for bar in bars)} traded in all")


if __name__ == "__main__":
    main()
