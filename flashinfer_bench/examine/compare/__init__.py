"""Compares two sides: whether B is faster than A, by how much, and with which confidence (docs/compare.md).

sides.py   two arguments → two sides, and their pairs of solutions
measuring.py, recorded.py   pairs → a Row for each workload, by interleaved blocks, or from recorded traces
result.py   the statistics, and the Comparison: decisions, JSON, Markdown, JUnit XML
"""
