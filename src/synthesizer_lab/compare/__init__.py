"""Compare synthesizers: rows from the command line, runs under one budget, results over seeds."""
