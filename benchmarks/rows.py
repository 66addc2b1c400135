"""The row that benchmarks of Spark send."""

ROW = b"twenty-eight bytes of a row."
