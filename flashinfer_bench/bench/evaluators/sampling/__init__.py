"""Evaluators for tokens that are drawn at random, and for the probabilities that they are drawn from."""
