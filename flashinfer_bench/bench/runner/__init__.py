"""The processes of a run, on the host's and the session's side: their start, messages, limits and end."""
