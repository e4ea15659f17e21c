"""Diagnoses: of this machine, of one call of a solution, of two sides. The results are not verdicts."""
