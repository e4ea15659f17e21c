"""The device session: one process for one device. A session judges jobs; solution code never runs in this process."""
