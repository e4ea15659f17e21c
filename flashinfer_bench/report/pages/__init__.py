"""A report as a folder of pages, which need no server. The authors' texts are data in it, never markup."""
