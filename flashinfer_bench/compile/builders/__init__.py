"""One module a language; the table of them is `compile/table.py`."""
