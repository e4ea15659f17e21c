"""Stress cases: inputs that differ from usual ones, which some calls of a job get."""
