"""Report: reads traces and makes rows. Pure: no files, no torch, no layout; the command line draws the rows."""
