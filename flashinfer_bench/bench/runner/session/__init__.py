"""The device session: one process for one device. It judges jobs; solution code never runs in it."""
