"""One case of a routine: its words, and the definition, workload and solutions that are made of it."""
