"""Measure: how long one launch takes, by which method, in which cache state. It knows nothing of solutions."""
