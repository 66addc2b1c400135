"""HTTP/2: a stream of it carries a connection, and many of those share one connection to a server."""
