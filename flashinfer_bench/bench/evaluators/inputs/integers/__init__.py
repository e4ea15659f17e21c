"""Integer inputs: how a reference uses them, read off its source, and the random ones that have a meaning."""
