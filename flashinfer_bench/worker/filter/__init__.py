"""The filter on a worker's system calls, and the guard's answers to those that it asks about."""
