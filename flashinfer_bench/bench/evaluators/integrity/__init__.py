"""Rules besides the user's tolerance. These rules reject errors that no honest kernel makes, even if the tolerance is
loose. The modules here import no evaluator class."""
