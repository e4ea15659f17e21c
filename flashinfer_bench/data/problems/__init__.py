"""Reads the problems of other engines from folders, and runs the problems' code to find shapes."""
