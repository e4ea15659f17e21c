"""Diagnoses: `doctor` of this machine, `inspect` of one call of a solution, `compare` of A against B. No verdicts."""
