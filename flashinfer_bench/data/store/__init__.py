"""The set on disk: paths, lines, problems of files, and writing results."""
