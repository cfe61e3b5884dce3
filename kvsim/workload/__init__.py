"""What the cache is asked to hold: recorded attention now, synthetic processes and traces next."""
