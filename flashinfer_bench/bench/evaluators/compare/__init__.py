"""Compare an output with the expected one: how far off it is, whether it is close enough. Imports no evaluator."""
