"""Several processes that serve the same addresses: their messages, the worker and its supervisor."""
