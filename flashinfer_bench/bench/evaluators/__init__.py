"""The judge: what is expected, how far off a solution is, the verdict. No solution code in its process; needs torch."""
