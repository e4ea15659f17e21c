"""Our side of the processes: who runs where, who waits for whom and how long."""
