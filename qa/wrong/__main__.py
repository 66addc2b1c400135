"""``python -m qa.wrong PORT [SWITCH]`` serves the wrong server to anybody; ``--list`` names its faults."""

from __future__ import annotations

import argparse

import trio

from qa.wrong.server import Switch, serve


def main() -> None:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(prog="python -m qa.wrong", description="a server of RSocket 1.0 with one fault")
    parser.add_argument("port", nargs="?", type=int, default=0, help="0 is any, which is printed")
    parser.add_argument("switch", nargs="?", metavar="SWITCH", help="as --list gives them; without one it is right")
    parser.add_argument("--list", action="store_true", help="only name the faults")
    asked = parser.parse_args()
    named = {str(switch): switch for switch in Switch}
    if asked.list:
        for name, switch in named.items():
            print(f"{name}: {switch.fault}; {switch.caught_by} catches it")
        return
    if asked.switch is not None and asked.switch not in named:
        parser.error(f"no fault {asked.switch}")
    trio.run(served, asked.port, named.get(asked.switch))


async def served(port: int, switch: Switch | None) -> None:
    """Serve, and print where."""
    async with trio.open_nursery() as nursery:
        print(await nursery.start(serve, switch, port), flush=True)


if __name__ == "__main__":
    main()
