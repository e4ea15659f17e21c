"""Compare two sides: is B faster than A, by how much, and how sure is that (docs/compare.md).

sides.py   two words → two sides, and the pairs of solutions in them
measuring.py, recorded.py   pairs → a Row for each workload, by blocks that are interleaved, or of recorded traces
result.py   the statistics, and the Comparison: decisions, JSON, Markdown, JUnit XML
"""
