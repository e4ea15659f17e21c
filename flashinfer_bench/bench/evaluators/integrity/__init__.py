"""Rules beside the user's tolerance: what no honest kernel does, however loose the tolerance. Imports no evaluator."""
