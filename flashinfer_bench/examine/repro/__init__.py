"""A FAILURE IN FILES: a job is judged once more; the call that decides is written down, with a script that shows it."""
