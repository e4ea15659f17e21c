"""The families of routines. The file of a family has the flags, shapes and costs of the family's routines."""
