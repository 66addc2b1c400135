"""Several processes that serve the same addresses: what they are told, each of them, and who looks after them."""
