"""A report as a folder of pages, which need no server. The pages treat texts of authors as data, never as markup."""
