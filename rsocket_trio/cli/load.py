"""The command ``load``: makes requests at a rate from worker processes or tasks of Spark, and prints a table."""

from __future__ import annotations

import json
import math
import os
import shlex
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import click
import trio

from rsocket_trio import errors, open_connection
from rsocket_trio.cli import starting
from rsocket_trio.cli.client_command import OURS, credentials, habits_with, keepalive_terms
from rsocket_trio.cli.composing import check_mimes, compose
from rsocket_trio.cli.data import Loaded, Stdin, source_of
from rsocket_trio.cli.exit_codes import (
    CANNOT_CONNECT,
    CODES,
    FAILED,
    MEANINGS,
    MISUSED,
    NAME,
    REJECTED,
    TIMED_OUT,
    Failure,
    complain,
    public_name,
    report,
)
from rsocket_trio.cli.help_page import Command
from rsocket_trio.cli.options import COUNT, ROWS, SECONDS, Callback, mime, set_up_logging, uri
from rsocket_trio.cli.output import write_text
from rsocket_trio.cli.served_routes import with_near_route
from rsocket_trio.cli.spark_job import aside, last_line, reason, setting
from rsocket_trio.cli.starting import INTERRUPTED
from rsocket_trio.connection.protocols import peer_and_dialect
from rsocket_trio.extras import install_command
from rsocket_trio.payload import Payload

if TYPE_CHECKING:
    from rsocket_trio.loadgen.plan import Plan
    from rsocket_trio.loadgen.summary import Summary

T = TypeVar("T")

NO_SPARK = f"a load from Spark needs pyspark: {install_command('spark')}, or leave out --master"
SHARED = (
    *("route", "metadata", "take", "limit_rate", "dialect", "quirks", "peer", "mimes", "setup_data", "setup_metadata"),
    *("setup_mime", "simple", "bearer", "keepalive", "lifetime", "lease", "trust", "untrusted", "cert", "key"),
    *("headers", "log", "stacktrace", "connect_timeout"),
)
"""Options that mean the same as in the other commands of a client, by their parameters."""
SAME = (
    *("uri", "connections", "interaction", "items", "take", "arrivals", "in_flight"),
    *("timeout", "warm_up", "seed", "quirks", "peer", "lease", "headers", "trust", "untrusted", "cert", "key"),
)
"""Options that are fields of a plan as they are."""
INTERACTIONS = ("response", "stream", "fnf", "channel")
ARRIVALS = ("constant", "poisson", "closed")
DEFAULT_SECONDS = 10.0
"""The duration of a ramp without one of its own, in seconds."""


def sizes(text: str) -> tuple[int, ...]:
    """Return numbers of bytes, from text with commas between them."""
    try:
        found = tuple(int(each) for each in text.split(","))
    except ValueError:
        found = (-1,)
    if min(found) < 0:
        raise click.BadParameter(f"{text!r}: numbers of bytes, as in 100 or 16,100,4000")
    return found


OF_BOUND = ("bound_latency", "bound_quantile", "bound_errors")
"""Options that are fields of a ``Bound``."""
PART = click.FloatRange(0, 1)


def rates(text: str) -> tuple[tuple[float, float, float | None], ...]:
    """Return triples of a rate, the rate at its end and its seconds, if given, from text as in ``0..100@10,100@60``."""
    return tuple(_rate(each, text) for each in text.split(","))


def _rate(text: str, whole: str) -> tuple[float, float, float | None]:
    pace, at, length = text.partition("@")
    first, dots, last = pace.partition("..")
    try:
        found = float(first), float(last if dots else first), float(length) if at else None
    except ValueError:
        found = -1.0, -1.0, None
    begin, end, _ = found
    # Only a stage that says how long it is may be a pause.
    if not (0 <= begin < math.inf and 0 <= end < math.inf) or not (begin or end or at):
        raise click.BadParameter(
            f"{whole!r}: requests per second, as in 500, 0..500 for a ramp, or 0..500@10,500@60 with seconds"
        )
    return found


def share(text: str) -> dict[str, Any]:
    """Return the fields of a share of a mix, from text as in ``stream:ticks weight=20 take=5``."""
    try:
        what, *pairs = shlex.split(text)
    except ValueError:
        raise click.BadParameter(f"{text!r}: INTERACTION:ROUTE is needed, as in 'stream:ticks weight=20'") from None
    interaction, colon, route = what.partition(":")
    found: dict[str, Any] = {"interaction": interaction, "route": route if colon else None}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or key not in OF_SHARE:
            known = ", ".join(f"{key}=" for key in OF_SHARE)
            raise click.BadParameter(f"{text!r}: {pair!r} is none of {known} behind INTERACTION:ROUTE")
        name, convert = OF_SHARE[key]
        try:
            found[name] = convert(value)
        except ValueError:
            raise click.BadParameter(f"{text!r}: {pair!r} is not a number") from None
    return found


def shared_options(command: Callback) -> Callback:
    """Add the options that the other commands have as well."""
    for row in reversed(ROWS):
        if row.parameter in SHARED:
            command = row.option(row.ours)(command)
    return command


@click.command(
    "load",
    cls=Command,
    examples=(
        "load tcp://127.0.0.1:7878 --route echo --rate 500 --seconds 30",
        "load tcp://127.0.0.1:7878 --route echo --rate 500 -n 10000 --poisson --workers 2",
        "load tcp://127.0.0.1:7878 --route echo --find-limit --bound-latency 0.05",
    ),
    codes={
        **MEANINGS,
        0: "there was a load, whatever the server answered",
        FAILED: "a worker was killed, Spark failed, or --find-limit found no rate that is held",
        CANNOT_CONNECT: "the server cannot be reached, or was gone at the end",
        TIMED_OUT: "the first request was not answered within --timeout",
    },
)
@click.argument("uri", type=uri)
@click.option(
    "--rate",
    type=rates,
    metavar="R[..R][@S],...",
    help="Requests per second of all workers together: 500, a ramp 0..500, or stages with seconds, 0..500@10,500@60.",
)
@click.option("--seconds", type=SECONDS, metavar="S", help="Seconds that are measured (10); stages have their own.")
@click.option(
    "-n", "--requests", type=COUNT, metavar="N", help="Requests of all workers together, instead of --seconds."
)
@click.option("--workers", type=COUNT, metavar="N", help="Worker processes on this machine (1).")
@click.option("--tasks", type=COUNT, metavar="N", help="Tasks of Spark, with --master, instead of --workers.")
@click.option(
    "--connections", type=COUNT, metavar="N", default=1, show_default=True, help="Connections of each worker."
)
@click.option(
    "--interaction",
    type=click.Choice(INTERACTIONS),
    default=INTERACTIONS[0],
    show_default=True,
    help="The interaction of each request.",
)
@click.option(
    "--find-limit", is_flag=True, help="Find the highest rate that is held, from --rate (100) on, in trials of 5 s."
)
@click.option("--bound-latency", type=SECONDS, metavar="S", help="Seconds of latency that --find-limit allows (0.1).")
@click.option("--bound-quantile", type=PART, metavar="PART", help="Part of the requests that must be as fast (0.99).")
@click.option("--bound-errors", type=PART, metavar="PART", help="Part that may fail or be dropped (0.001).")
@click.option("--max-rate", type=SECONDS, metavar="R", help="The highest rate that --find-limit tries.")
@click.option("--precision", type=PART, metavar="PART", help="Part that the limit may be above the result (0.05).")
@click.option(
    "-d", "--data", metavar="TEXT|@FILE|-", help="The data of each request; @FILE is a file, - standard input."
)
@click.option(
    "--size", "sizes", type=sizes, metavar="BYTES[,...]", help="Random data of one of these sizes, instead of --data."
)
@click.option(
    "--mix",
    type=share,
    multiple=True,
    metavar="'INTERACTION[:ROUTE] [KEY=VALUE ...]'",
    help="A kind of request, drawn by its weight=; also data=, size=, items=, take=, name=. Several times.",
)
@click.option("--items", type=COUNT, metavar="N", default=1, help="Payloads that a channel sends (1).")
@click.option(
    "--arrivals",
    type=click.Choice(ARRIVALS),
    default=ARRIVALS[0],
    show_default=True,
    help="When requests are due: at equal distances, at random, or each after an answer (closed, without --rate).",
)
@click.option(
    "--poisson", is_flag=True, help="The same as --arrivals poisson: requests come at random, as from many users."
)
@click.option("--in-flight", type=COUNT, metavar="N", help="Requests of a worker that may wait for answers (1024).")
@click.option(
    "--timeout",
    type=SECONDS,
    metavar="SECONDS",
    default=10.0,
    show_default=True,
    help="Seconds that a request may take.",
)
@click.option(
    "--warm-up", type=click.FloatRange(min=0), metavar="SECONDS", default=0.0, help="Seconds of load before measuring."
)
@click.option("--seed", type=int, metavar="N", help="Seed of all random choices, to repeat them.")
@click.option("--no-probe", is_flag=True, help="Begin without the first request, which must be answered.")
@shared_options
@click.option("--data-mime", type=mime, metavar="MIME", help="MIME type of the data (application/octet-stream).")
@click.option("--master", metavar="URL", help="Make the load from tasks of this Spark, as in local[2].")
@click.option(
    "--conf", "settings", multiple=True, type=setting, metavar="KEY=VALUE", help="A setting of Spark; several times."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.option("-q", "--quiet", is_flag=True, help="Show no lines for single seconds.")
@click.pass_context
def command(ctx: click.Context, /, **said: Any) -> None:
    """Make a load on the server at URI, and show latencies and errors of each second.

    Requests begin when they are due, also while earlier ones wait for answers; latencies count from that time. Ctrl-C
    ends the load in order and shows the counts.
    """
    set_up_logging(said["log"])
    try:
        ctx.exit(make_load(said))
    except (Exception, KeyboardInterrupt) as error:
        if isinstance(error, click.exceptions.Exit):
            raise
        ctx.exit(report(error, stacktrace=said["stacktrace"]))


def make_load(said: dict[str, Any]) -> int:
    """Make the load. Return the exit code. Raise ``Failure`` and ``ValueError``, before anything starts if possible."""
    from rsocket_trio.loadgen.load_messages import LoadError
    from rsocket_trio.loadgen.load_workers import WorkerError
    from rsocket_trio.loadgen.plan import Plan

    check_engine(said)
    if said["find_limit"]:
        return search_limit(said)
    plan = Plan(**terms_of(said))
    try:
        summary = with_workers(plan) if said["master"] is None else with_spark(plan, said)
    except LoadError as error:
        failure = failure_of(str(error))
        if failure.code == REJECTED:
            failure = trio.run(with_near_routes, plan, failure)
        raise failure from error
    except WorkerError as error:
        show(error.summary, said)
        raise Failure(str(error), FAILED) from error
    if summary.interrupted and not summary.measured and not said["as_json"]:
        complain(starting.SAID)
        return INTERRUPTED
    show(summary, said)
    if summary.interrupted:
        return INTERRUPTED
    if summary.lost is not None:
        complain(f"{NAME}: the load ended without a connection: {summary.lost}")
        return CANNOT_CONNECT
    return 0


def check_engine(said: dict[str, Any]) -> None:
    """Raise ``ValueError`` for options of Spark without it, and of workers with it."""
    if said["master"] is not None and said["workers"] is not None:
        raise ValueError("--workers are processes of this machine: with --master, --tasks are those of Spark")
    if said["master"] is None and said["tasks"] is not None:
        raise ValueError("--tasks are those of Spark and need --master; --workers are processes of this machine")
    if said["master"] is None and said["settings"]:
        raise ValueError("--conf is a setting of Spark and needs --master")
    if not said["find_limit"]:
        for name in (*OF_BOUND, "max_rate", "precision"):
            if said[name] is not None:
                raise ValueError(f"--{name.replace('_', '-')} is for --find-limit")


def failure_of(problem: str) -> Failure:
    """Return the failure of a load that was not made: of the kind of error that the text begins with."""
    name, _, text = problem.partition(": ")
    kind = trio.TooSlowError if name == trio.TooSlowError.__name__ else getattr(errors, name, None)
    if not isinstance(kind, type) or not issubclass(kind, Exception):
        return Failure(problem)
    code = next((code for each, code in CODES if issubclass(kind, each)), FAILED)
    return Failure(text, code, name=public_name(kind))


def show(summary: Summary, said: dict[str, Any]) -> None:
    """Print the results as the options ask for."""
    from rsocket_trio.loadgen.summary import table

    write_text(json.dumps(summary.to_dict()) if said["as_json"] else table(summary, per_second=not said["quiet"]))


async def with_near_routes(plan: Plan, failure: Failure) -> Failure:
    """Return the failure of a rejected route with the one that is like it, if the server describes its routes."""
    text = str(failure)
    try:
        async with open_connection(plan.uri, **plan._connection_options()) as connection:
            for route in {share.route for share in plan.shares} - {None}:
                text = await with_near_route(connection, str(route), plan._request_metadata, text)
    except errors.RSocketError:
        # The server is gone in the meantime: there is no more to say.
        return failure
    return Failure(text, failure.code, name=failure.name)


def with_workers(plan: Plan) -> Summary:
    """Make the load from processes of this machine. Return its summary."""
    from rsocket_trio.loadgen.load_workers import run_plan

    return trio.run(interruptible, partial(run_plan, plan))


async def interruptible(work: Callable[..., Awaitable[T]]) -> T:
    """Have the first Ctrl-C stop the work in order. Raise ``KeyboardInterrupt`` at the second one."""
    stop = trio.Event()
    found: list[T] = []
    error: Exception | None = None

    async def watch() -> None:
        async for _ in signals:
            if stop.is_set():
                nursery.cancel_scope.cancel()
            stop.set()

    with trio.open_signal_receiver(signal.SIGINT) as signals:
        starting.done()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            try:
                found.append(await work(stop=stop))
            except Exception as exc:
                # Raised below: in the nursery it would leave it in a group.
                error = exc
            nursery.cancel_scope.cancel()
    if error is not None:
        try:
            raise error
        finally:
            del error  # its traceback refers to this frame
    if not found:
        raise KeyboardInterrupt
    return found[0]


def with_spark(plan: Plan, said: dict[str, Any]) -> Summary:
    """Make the load from tasks of Spark. Return its summary."""
    with spark_for(plan, said) as run_plan:
        return run_plan(plan)


@contextmanager
def spark_for(plan: Plan, said: dict[str, Any]) -> Iterator[Callable[[Plan], Summary]]:
    """Start Spark with slots for the tasks of a plan, for the block: it gets the function that makes a load.

    Raise ``Failure`` if Spark is missing or fails.
    """
    try:
        from rsocket_trio.analytics.local_spark import local_session
        from rsocket_trio.loadgen.run_load import SlotsError, check_slots, run_plan
        from rsocket_trio.spark import JavaNotFoundError, ensure_java
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] not in ("pyspark", "pyarrow"):
            raise
        raise Failure(NO_SPARK, MISUSED) from error
    try:
        ensure_java()
    except JavaNotFoundError as error:
        raise Failure(str(error), FAILED) from error
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    starting.done()

    # The workers are to be of this Python; without this they are whatever "python3" is.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = {"spark.app.name": "rsocket-trio load", **dict(said["settings"])}
    with tempfile.TemporaryFile() as spoken:
        try:
            with aside(spoken), local_session(said["master"], settings) as spark:
                check_slots(spark, plan.tasks)
                yield lambda plan: run_plan(spark, plan).summary
        except (PySparkException, Py4JError) as error:
            raise Failure(f"Spark failed: {reason(str(error)) or last_line(spoken)}", FAILED) from error
        except SlotsError as error:
            raise Failure(str(error), FAILED) from error


def search_limit(said: dict[str, Any]) -> int:
    """Find the highest rate that the server holds, and show it. Return the exit code."""
    from rsocket_trio.loadgen.find_limit import Bound, find_limit, first_plan, search_with
    from rsocket_trio.loadgen.load_messages import LoadError
    from rsocket_trio.loadgen.load_workers import WorkerError

    wanted = {name.removeprefix("bound_"): said[name] for name in OF_BOUND if said[name] is not None}
    terms: dict[str, Any] = {name: said[name] for name in ("max_rate", "precision") if said[name] is not None}
    terms["bound"] = Bound(**wanted)
    if not said["as_json"] and not said["quiet"]:
        terms["on_trial"] = lambda trial: write_text(str(trial))
    plan_terms = terms_of(said)
    try:
        if said["master"] is None:
            limit = trio.run(interruptible, partial(find_limit, **terms, **plan_terms))
        else:
            plan = first_plan(**plan_terms)
            with spark_for(plan, said) as run_plan:
                limit = search_with(run_plan, plan, **terms)
    except LoadError as error:
        raise failure_of(str(error)) from error
    except WorkerError as error:
        raise Failure(str(error), FAILED) from error
    write_text(json.dumps(limit.to_dict()) if said["as_json"] else str(limit))
    if limit.interrupted:
        return INTERRUPTED
    if limit.problem is not None:
        raise failure_of(limit.problem)
    return 0 if limit.rate is not None else FAILED


def schedule_of(said: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a plan for its rate: one rate or stages, and seconds. Raise ``ValueError``."""
    from rsocket_trio.loadgen.stages import Stage

    found, seconds = said["rate"], said["seconds"]
    terms = {} if seconds is None else {"seconds": seconds}
    if said["requests"] is not None:
        if seconds is not None:
            raise ValueError("-n and --seconds exclude each other: so many requests take as long as the rate says")
        if found is not None and (len(found) > 1 or found[0][0] != found[0][1] or found[0][2] is not None):
            raise ValueError("-n is for one rate: a ramp and stages have seconds")
        terms["requests"] = said["requests"]
    if found is None:
        return terms
    [first, *others] = found
    if not others and first[0] == first[1] and first[2] is None:
        return {**terms, "rate": first[0]}
    if len(found) == 1 and first[2] is None:
        return {"stages": (Stage(first[0], seconds or DEFAULT_SECONDS, first[1]),)}
    if seconds is not None:
        raise ValueError("--seconds is that of a rate without stages: each stage has its own, as in 0..500@10,500@60")
    if any(stage[2] is None for stage in found):
        raise ValueError("--rate with several stages needs the seconds of each, as in 0..500@10,500@60")
    return {"stages": tuple(Stage(rate, length, end) for rate, end, length in found)}


def mix_of(said: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a plan for a mix of requests, if there is one. Raise ``ValueError``."""
    from rsocket_trio.loadgen.mix import Share

    if not said["mix"]:
        return {}
    for name, option in (("route", "--route"), ("data", "--data"), ("sizes", "--size"), ("take", "--take")):
        if said[name] is not None:
            raise ValueError(f"--mix and {option} exclude each other: each share has its own")
    # Data is read here, and not with the options: a file that can't be read is no wrong usage.
    shares = (each if "data" not in each else {**each, "data": data_of(each["data"])} for each in said["mix"])
    return {"mix": tuple(Share(**each) for each in shares)}


def data_of(value: str) -> bytes:
    """Return the data of each request. Raise ``Failure`` for a file that can't be read."""
    source = source_of(value)
    if isinstance(source, Stdin):
        return sys.stdin.buffer.read()
    return source.read() if isinstance(source, Loaded) else os.fsencode(source.text)


OF_SHARE: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "weight": ("weight", float),
    "data": ("data", str),
    "size": ("sizes", sizes),
    "items": ("items", int),
    "take": ("take", int),
    "name": ("name", str),
}
"""The keys of a share of a mix: its field, and how the value is read."""


def terms_of(said: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a plan that the options stand for. Raise ``ValueError``."""
    peer, dialect = peer_and_dialect(said["peer"], said["dialect"])
    habits = habits_with(peer, OURS)
    check_mimes(dialect, said["data_mime"], *said["mimes"], said["setup_mime"])
    metadata = compose(
        said["metadata"],
        said["mimes"],
        default_mime=habits.metadata_mime,
        bare_mime=habits.bare_mime,
        # In a mix any route decides about the MIME type, and each share brings its own.
        route=next((each["route"] for each in said["mix"] if each["route"] is not None), said["route"]),
        credentials=credentials(said["simple"], said["bearer"], dialect),
        setup_text=said["setup_metadata"],
        setup_mime=said["setup_mime"],
    )
    terms = {name: said[name] for name in SAME}
    if said["poisson"]:
        if said["arrivals"] == "closed":
            raise ValueError("--poisson and --arrivals closed exclude each other")
        terms["arrivals"] = "poisson"
    if (credit := said["limit_rate"] or habits.credit) is not None:
        terms["credit"] = credit
    if said["connect_timeout"] is not None:
        terms["connect_timeout"] = said["connect_timeout"]
    return {
        **terms,
        **schedule_of(said),
        **mix_of(said),
        "tasks": said["tasks"] or said["workers"] or 1,
        "dialect": dialect,
        "route": None if said["mix"] else metadata.route,
        "metadata": metadata.content,
        "metadata_mime": metadata.mime,
        "data": data_of(said["data"] or ""),
        "sizes": said["sizes"] or (),
        "data_mime": said["data_mime"] or habits.data_mime,
        "setup": Payload(os.fsencode(said["setup_data"] or ""), metadata.setup),
        "keepalive": keepalive_terms(said["keepalive"], said["lifetime"], habits.keepalive),
        "probe": not said["no_probe"],
    }
