"""Exports solutions to the folder that FlashInfer's Trace Apply reads, and reads them back (docs/apply.md).

`families` has the translations as data, `wrappers` the sources that translate calls, `fitness` the reasons to refuse a
solution, `export` the choice and the folder, `origin` the way back, and `check` FlashInfer's own reader.
"""
