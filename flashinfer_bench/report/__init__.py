"""Report: reads traces and makes rows. It uses no files, torch or layout; the command line prints the rows."""
