"""The families of routines: one file a family says what its routines take, compute and cost."""
