"""The RSocket family as pure state: frames, layouts, dialects, and one session engine. No I/O and no clock."""
