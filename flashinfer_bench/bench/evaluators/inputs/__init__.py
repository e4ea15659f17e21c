"""The inputs of a workload: stored tensors, given numbers, and random values by rule. The modules here import no
evaluator class."""
