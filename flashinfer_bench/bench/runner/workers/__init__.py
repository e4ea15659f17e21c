"""Workers as the session sees them: processes, shared memory, claims. Imports nothing of the session."""
