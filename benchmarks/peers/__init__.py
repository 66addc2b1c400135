"""One server and one client script for each library."""
