"""Makes the plan of a run: names, machine and records become jobs. It starts nothing."""
