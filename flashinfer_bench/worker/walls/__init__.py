"""The walls of a worker: which files it reaches, which calls lead out, what the guard does in its place."""
