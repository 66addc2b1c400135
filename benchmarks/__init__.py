"""Benchmarks of speed and size, each measured against a peer in the same run."""
