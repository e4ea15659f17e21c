"""One module for each way to build. `compile/table.py` says which language takes which."""
