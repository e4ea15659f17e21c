"""How far an output is from the expected one, and whether that is close enough. Imports no evaluator."""
