"""Inputs of other regimes than usual ones, which a few calls of a job get."""
