"""The nursery around a session: tasks, scopes, waiting, and the API that users call."""
