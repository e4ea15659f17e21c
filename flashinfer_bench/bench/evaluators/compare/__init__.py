"""Compares an output with the expected output: its errors, and whether they are within tolerance. The modules here
import no evaluator class."""
