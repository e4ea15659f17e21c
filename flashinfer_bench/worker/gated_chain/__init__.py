"""Gated chains: calls on a GPU, each of which gets the key to its inputs once the call before has committed."""
