"""The host's and the session's side of all processes: their start, messages, limits and end."""
