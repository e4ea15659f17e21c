"""A routine that runs as several ranks of mpirun, past the engine: the all-to-all of experts."""
