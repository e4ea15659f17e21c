"""The best time of an operation on a device: its cost, what the device can do, and the share that was reached."""
