"""Exports solutions to the folder that FlashInfer's Trace Apply reads, and reads them back (docs/apply.md).

`export` chooses solutions and writes the folder. `families` has the translations as data. `wrappers` has the sources
that translate calls. `fitness` has the reasons to refuse a solution. `origin` restores the original solutions of a
folder. `check` runs FlashInfer's own reader.
"""
