"""Turns files of other dialects, and old files, into today's format. Only this room knows those forms."""
