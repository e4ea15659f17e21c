"""One case of a routine: its declarations, and the definition, workload and solutions generated from it."""
