"""What a workload's inputs hold: stored values, given numbers, and random values by rule. Imports no evaluator."""
