"""WebSocket: the transport, its framing, the HTTP upgrade, and an adapter for trio-websocket."""
