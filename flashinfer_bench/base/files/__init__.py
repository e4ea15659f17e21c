"""Opens, walks, removes and locks files that another user may have made, and never waits on them without a limit."""
