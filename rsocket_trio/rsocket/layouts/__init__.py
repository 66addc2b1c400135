"""The byte layouts of the dialects: a decoder and an encoder for each frame type."""
