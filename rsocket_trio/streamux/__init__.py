"""Streamux, preview 1, as pure state: negotiation, chunks and the session."""
