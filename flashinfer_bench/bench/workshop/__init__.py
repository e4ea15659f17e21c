"""What judging needs, whoever drives it: a run of a plan, the resident engine, or a look beside the engine."""
