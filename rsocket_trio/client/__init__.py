"""The client: one connection by URI or over a stream, and a client that reconnects."""
