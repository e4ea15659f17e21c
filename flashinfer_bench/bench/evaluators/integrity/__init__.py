"""Rules besides the user's tolerance: errors that no honest kernel makes, however loose the tolerance. Imports no
evaluator."""
