"""Files that another user may have made: opening, walking, removing and locking them without being held up."""
