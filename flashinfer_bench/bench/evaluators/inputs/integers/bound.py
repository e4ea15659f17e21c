"""Which names a piece of a syntax tree binds."""

from __future__ import annotations

import ast
from typing import Final

SCOPES: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
"""What is executed at another time than where it stands, or has names of its own."""


def list_bound(node: ast.AST) -> list[str]:
    """List the names that a node binds, changes or takes away, but for those of the nodes in it."""
    match node:
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
            return [name]
        case ast.alias(name=name, asname=other):
            return [other or name.split(".")[0]]
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)):
            return [name]
        case ast.MatchStar(name=str(name)) | ast.MatchMapping(rest=str(name)):
            return [name]
        case ast.Nonlocal(names=names) | ast.Global(names=names):
            return list(names)
        case _:
            return []


def list_shared(node: ast.AST) -> set[str]:
    """List the names of a piece of code that functions, classes or other modules may read or change later."""
    inner = [one for scope in ast.walk(node) if isinstance(scope, SCOPES) for one in ast.walk(scope)]
    changed = {name for one in ast.walk(node) if isinstance(one, ast.Nonlocal | ast.Global) for name in one.names}
    return changed | {one.id for one in inner if isinstance(one, ast.Name)}
