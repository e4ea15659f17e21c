"""One case of a routine: declarations, and the definition, workload and solutions that are generated from a case."""
