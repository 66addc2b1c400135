"""How fast, and how large: measured against a peer in the same run."""
