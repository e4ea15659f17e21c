"""The inputs of a workload: stored tensors, given numbers, and random values by rule. Imports no evaluator."""
