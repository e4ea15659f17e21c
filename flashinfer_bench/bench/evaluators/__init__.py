"""The judge: makes inputs, asks the reference, compares, decides. No solution code runs in its process. Needs torch."""
