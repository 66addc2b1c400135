// What the programs of this folder send and receive. The tests have the same types in Python.

record Order(String symbol, int amount) {}

record Receipt(String id, double total) {}

record Tick(String symbol, int number, double price) {}

record Offer(double price) {}

record Answer(double price, boolean accepted) {}

record Document(String text) {}

/** Says why an order failed: the details of an error. */
record Reason(String reason, int left) {}

/** The data of a SETUP. */
record Hello(String name) {}
