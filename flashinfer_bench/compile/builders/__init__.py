"""One module for each way to build. The record of a language names its module."""
