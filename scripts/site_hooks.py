"""What `mkdocs build` calls while it makes the site: generated pages, Markdown for models, a check that nothing is
fetched."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from references import PAGES, render_llms  # mkdocs looks for modules beside this one

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
    files.append(File.generated(config, "llms.txt", content=render_llms(config.nav, config.site_description)))
    return files


def on_env(env: Any, config: Any, files: Files) -> Any:
    """Write the Markdown of each page beside it: llms.txt links to it."""
    for page in files.documentation_pages():
        target = Path(config.site_dir, page.src_uri)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(page.content_string, "utf-8")
    return env


def on_post_page(output: str, page: Any, config: Any) -> str:  # noqa: ARG001 - mkdocs names the arguments
    """Refuse a page that makes a browser fetch something of another host."""
    found = FETCHED.search(output)
    if found:
        raise PluginError(f"{page.file.src_uri}: a page fetches nothing of other hosts, but this one has {found[0]}")
    return output
