"""What every other room may use: files, what a process may use of the machine, names found late."""
