"""Sets that are written whole into a new folder: several as one, or one in our layout."""
