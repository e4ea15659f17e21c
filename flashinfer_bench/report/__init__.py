"""Report: reads traces and makes rows. No module in this folder uses torch or the layout of a set. The command line
prints the rows."""
