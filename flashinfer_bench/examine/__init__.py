"""Looks at this machine, and at one call of a solution, beside the engine: nothing here is a verdict."""
