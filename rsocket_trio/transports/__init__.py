"""Moving whole frames: TCP, TLS, Unix sockets, WebSocket, memory, and the URIs that name them."""
