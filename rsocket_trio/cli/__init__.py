"""The command line ``rsocket-trio``."""
