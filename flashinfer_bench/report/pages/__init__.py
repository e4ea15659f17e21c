"""A report as a folder of pages that works from disk. The authors' texts are data in it, never markup."""
