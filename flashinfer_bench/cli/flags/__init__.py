"""The flags and the help of each command. They import no engine: `--help` must answer at once."""
