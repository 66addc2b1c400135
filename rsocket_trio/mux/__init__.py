"""What any multiplexer needs: frames out of bytes, lanes, credit, ids, halves. No I/O and no clock."""
