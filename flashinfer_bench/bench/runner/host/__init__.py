"""What the host's loop over its sessions works with."""
