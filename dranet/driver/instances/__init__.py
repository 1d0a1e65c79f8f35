"""Two instances of the driver on one node, as in a rolling update: who works, who waits, who leaves."""
