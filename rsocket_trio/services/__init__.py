"""Services: typed handlers and clients, and what surrounds each call."""
