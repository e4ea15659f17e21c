"""The command line. A command is a file with its flags and its help; `entry` lists, parses and calls the commands."""
