"""What is done with whole sets: which trace counts, merging, writing what scripts add, and scores."""
