"""The edit loop: from a source file to its verdict, skeletons to begin with, and why a verdict is what it is."""
