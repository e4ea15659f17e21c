"""The page at /docs: the routes as text, made from the OpenAPI description. It has no script and fetches nothing.

The usual pages for OpenAPI load scripts from another site, and these could then speak with the server.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any, Final

STYLE: Final = "body{font-family:sans-serif;max-width:60em;margin:2em auto}code{font-weight:bold}dd{margin-bottom:1em}"


def render_docs(description: Mapping[str, Any]) -> str:
    """Return the page of an OpenAPI description."""
    title = escape(f"{description['info']['title']} {description['info']['version']}")
    entries = [
        f"<dt><code>{method.upper()} {escape(path)}</code></dt><dd>{escape(_text(operation))}</dd>"
        for path, operations in description["paths"].items()
        for method, operation in operations.items()
    ]
    intro = 'The whole description is at <a href="/openapi.json">/openapi.json</a>.'
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>{STYLE}</style>'
    return f"{head}<h1>{title}</h1><p>{intro}</p><dl>{''.join(entries)}</dl></html>\n"


def _text(operation: Mapping[str, Any]) -> str:
    return str(operation.get("description") or operation.get("summary") or "")
