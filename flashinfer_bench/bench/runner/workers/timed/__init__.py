"""Timed calls: their buffers, their contents, their timing, and the choice of the compared outputs."""
