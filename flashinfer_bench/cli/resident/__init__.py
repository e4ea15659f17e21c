"""Commands about a server: start it, submit to it, watch it."""
