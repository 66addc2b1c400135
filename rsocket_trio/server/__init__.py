"""The server: listeners, accepted connections, and worker processes."""
