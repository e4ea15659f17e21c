"""Makes the plan of a run: the jobs, from the selected names, the machine and recorded traces. Planning starts no
process."""
