"""Sources as somebody edits them, without a manifest: what they are a solution of, and skeletons to begin with."""
