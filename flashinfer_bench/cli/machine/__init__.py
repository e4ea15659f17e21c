"""Commands about this machine: what it measures, what is built and kept on it, a look at one call."""
