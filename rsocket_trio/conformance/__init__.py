"""Conformance cases: rows of what is sent and what may come back, and a tester that plays them against any peer.

Nothing here uses a session of this library: frames are templates of bytes from the documents.
"""
