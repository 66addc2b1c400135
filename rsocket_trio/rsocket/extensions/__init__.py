"""Extension entries of the draft: blocks of entries, the values in them, and what a session does with them."""
