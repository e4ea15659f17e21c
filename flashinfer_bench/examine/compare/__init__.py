"""Compare two sides: is B faster than A, by how much, and how sure is that."""
