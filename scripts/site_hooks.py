"""What `mkdocs build` calls while it makes the site: the generated pages, and a check that nothing is fetched."""

from __future__ import annotations

import re
from typing import Any, Final

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from references import PAGES  # mkdocs looks for modules beside this one

FETCHED: Final = re.compile(
    r"""<(?:script|img|iframe|source)\b[^>]*\bsrc=["']?(?:https?:)?//[^>]*>"""
    r"""|<link\b(?=[^>]*\brel=["']?(?:stylesheet|preconnect|preload|icon))[^>]*\bhref=["']?(?:https?:)?//[^>]*>"""
    r"""|class=["']?mermaid"""
)
"""What makes a browser fetch something of another host. Material loads the script for mermaid from one."""


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages."""
    for path, render in PAGES.items():
        files.append(File.generated(config, path, content=render()))
    return files


def on_post_page(output: str, page: Any, config: Any) -> str:  # noqa: ARG001 - mkdocs names the arguments
    """Refuse a page that makes a browser fetch something of another host."""
    found = FETCHED.search(output)
    if found:
        raise PluginError(f"{page.file.src_uri}: a page fetches nothing of other hosts, but this one has {found[0]}")
    return output
