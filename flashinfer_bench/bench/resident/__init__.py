"""The resident engine: it takes solutions while it runs, from any thread."""
