"""Evaluators for outputs that choose entries: the largest k, the tokens of sparse attention."""
