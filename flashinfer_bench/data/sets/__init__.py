"""Operations on whole sets: latest results, merging, additions by scripts, and scores."""
