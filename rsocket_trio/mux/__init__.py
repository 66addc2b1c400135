"""The parts of every multiplexer: framing, queues, credit, stream ids, half-closing. No I/O and no clock."""
