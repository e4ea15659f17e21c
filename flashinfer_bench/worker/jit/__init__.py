"""What a worker does for compilers that run inside it: what a first launch needs, and compiling before a launch."""
