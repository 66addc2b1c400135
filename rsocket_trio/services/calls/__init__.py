"""The life of one call that needs more than its bytes, on both sides: what makes it, serves it and surrounds it."""
