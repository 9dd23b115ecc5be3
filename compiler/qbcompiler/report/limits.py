"""The limits of an operator, read from its own code: the reasons that it gives.

An ``OpSpec`` refuses with a sentence, in ``lower`` (the layer is not made), ``unsupported`` (it has
no integer form) or ``quantize``. Those sentences are all that documentation needs, and cannot be
out of date.
"""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Callable, Collection, Iterator
from itertools import pairwise
from typing import Any

from ..ops import OpSpec

__all__ = ["reasons"]

_UNINTERESTING = ("lacks an input", "ONNX has no such operator", "has no ONNX form of its own")


def reasons(spec: OpSpec[Any], method: str, skip: Collection[str] = ()) -> list[str]:
    """Return the sentences of ``lower`` or ``unsupported``, parts that vary shown as ``…``.

    Helpers of the package that the method calls, and the method of a base class where it calls
    that, are read too; not those named in ``skip``.
    """
    found: dict[str, None] = {}
    seen: set[str] = set(skip)
    work: list[Callable[..., Any]] = [getattr(type(spec), method)]
    while work:
        function = inspect.unwrap(work.pop(0))
        if function.__qualname__ in seen or function.__qualname__.startswith("OpSpec."):
            continue
        seen.add(function.__qualname__)
        tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
        assert isinstance(tree, ast.FunctionDef)
        for text in _sentences(tree):
            if text and not any(part in text for part in _UNINTERESTING):
                found.setdefault(text)
        work += _called(tree, function, spec, method)
    return list(found)


def _sentences(tree: ast.FunctionDef) -> Iterator[str]:
    """Yield what is refused with: ``Refusal(text)``, and texts that a reason function returns."""
    returns = ast.unparse(tree.returns) if tree.returns is not None else ""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "Refusal":
            yield from _texts(node.args[0])
        elif (
            returns == "str | None"
            and isinstance(node, (ast.Return, ast.Assign))
            and node.value is not None
        ):
            yield from _texts(node.value)


def _texts(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        parts = [str(v.value) if isinstance(v, ast.Constant) else "…" for v in node.values]
        yield "".join(parts)
    elif isinstance(node, ast.IfExp):
        yield from _texts(node.body)
        yield from _texts(node.orelse)
    elif isinstance(node, ast.BoolOp):
        for value in node.values:
            yield from _texts(value)


def _called(
    tree: ast.FunctionDef, function: Callable[..., Any], spec: OpSpec[Any], method: str
) -> list[Callable[..., Any]]:
    names = vars(sys.modules[function.__module__])
    found: list[Callable[..., Any]] = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        target = node.func
        if isinstance(target, ast.Name):
            helper = names.get(target.id)
            if inspect.isfunction(helper) and helper.__module__.startswith("qbcompiler."):
                found.append(helper)
        elif isinstance(target, ast.Attribute):
            owner = ast.unparse(target.value)
            if owner == "super()" and target.attr == method:
                found += _overridden(spec, function, method)
            elif owner == "self" and target.attr != method:
                helper = getattr(type(spec), target.attr, None)
                if inspect.isfunction(helper):
                    found.append(helper)
    return found


def _overridden(
    spec: OpSpec[Any], function: Callable[..., Any], method: str
) -> list[Callable[..., Any]]:
    """Return the method of the next class after the one that ``function`` belongs to."""
    owners = [c for c in type(spec).__mro__ if method in vars(c)]
    for cls, base in pairwise(owners):
        if vars(cls)[method] is function:
            return [vars(base)[method]]
    return []
