"""The other side: the only package in whose process solution code lives. It never imports the judge."""
