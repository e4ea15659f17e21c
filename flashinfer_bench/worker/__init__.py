"""The worker process, which runs solution code. This package never imports the judge."""
