"""Gated chains: calls on a GPU. Each call gets the key to its inputs after the previous call has committed."""
