"""The families of routines: one file for each family says what its routines take, compute and cost."""
