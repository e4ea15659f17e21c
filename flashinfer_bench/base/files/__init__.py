"""Files that somebody else may have put there: opening, walking, removing and locking them without being held up."""
