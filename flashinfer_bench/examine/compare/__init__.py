"""Compare two sides: is B faster than A, by how much, and how sure is that (docs/compare.md).

sides.py   two words → two sides, and the pairs of solutions in them
measuring.py, recorded.py   pairs → a Row for each workload, by blocks that take turns, or of recorded traces
ratios.py  the statistics        result.py   the Comparison: decisions, table, JSON, Markdown, JUnit XML
"""
