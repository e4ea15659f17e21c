"""How fast a device could be at best: what an operation costs, what a device can do, and what share was reached."""
