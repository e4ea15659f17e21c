"""The set on disk: paths, lines, everything that can be wrong with files, and writing results."""
