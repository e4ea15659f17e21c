"""What the user gave: trace sets, settings, names, and what is recorded already. Imports no command."""
