"""For tests of responders and clients: a network that exists in memory, faults by seed, runs that repeat."""

from rsocket_trio.testing.delivery_checker import DeliveryChecker, Verdict
from rsocket_trio.testing.network import Faults, SimulatedListener, SimulatedNetwork, SimulatedStream
from rsocket_trio.testing.pairs import connected_pair
from rsocket_trio.testing.scheduling import FrameTrace, deterministic_scheduling, simulate

__all__ = [
    "DeliveryChecker",
    "Faults",
    "FrameTrace",
    "SimulatedListener",
    "SimulatedNetwork",
    "SimulatedStream",
    "Verdict",
    "connected_pair",
    "deterministic_scheduling",
    "simulate",
]
