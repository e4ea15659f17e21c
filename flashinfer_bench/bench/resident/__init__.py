"""The resident engine, which takes solutions while it runs; and what it shares with a run of a plan."""
