"""The parts of every multiplexer: framing, lanes, credit, stream ids, half-closing. No I/O and no clock."""
