"""Compares an output with the expected output: its errors, and whether it is close enough. Imports no evaluator."""
