"""Commands that show, check and write trace sets; nothing is run but what `validate` is asked to run."""
