"""A report as a folder of pages that works from disk. What authors wrote is data in it, never markup."""
