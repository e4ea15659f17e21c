"""How to install an extra of this package. On the package index, this package's name is taken by the public package."""


def install_hint(extra: str) -> str:
    """Return the command that installs an extra, for the end of a message."""
    return f"in the checkout of this package run: pip install -e '.[{extra}]'"
