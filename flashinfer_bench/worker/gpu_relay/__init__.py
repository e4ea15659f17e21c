"""Gated chains: what goes around each call, and the board by which a session gives calls out."""
