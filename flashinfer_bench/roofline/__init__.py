"""The best time of an operation on a device: its cost, the device's peak, and the reached share."""
