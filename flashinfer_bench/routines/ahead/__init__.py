"""Compiling ahead: a process calls a library kernel once, so that it is compiled before it is timed."""
