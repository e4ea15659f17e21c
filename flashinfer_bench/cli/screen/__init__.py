"""What the command line shows: tables, progress, plans, outcomes; and the streams they go to. Imports no command."""
