"""Workers as the session sees them: their processes, the memory they share with it, and what they claim. Imports no session."""
