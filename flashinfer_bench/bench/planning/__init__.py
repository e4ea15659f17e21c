"""Says what a run does: names, machine and records become jobs. Nothing is started here."""
