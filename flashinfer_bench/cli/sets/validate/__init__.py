"""The commands `validate` and `validate-render`: what is wrong with a trace set, and the report of it."""
