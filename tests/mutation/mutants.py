"""Small changes of functions, one at a time: what a programmer may get wrong.

A mutant is known by its function, its kind, and the text that it changes, and not by its line; so the record of what
became of it stays true while other lines come and go.
"""

from __future__ import annotations

import ast
import types
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

_OPPOSITE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult,
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One change of one function of a module."""

    module: str
    function: str
    """Its qualified name."""
    name: str
    """Unique among the mutants of the module."""
    number: int
    """Which node of the function it changes, in the order of `ast.walk`."""
    kind: str

    def apply(self) -> None:
        """Give the function of the loaded module the code of the mutant, also where it is bound already."""
        tree = _tree_of(self.module)
        function = next(each for each, name in _functions(tree, "") if name == self.function)
        _change(function, self.number, self.kind)
        whole = compile(ast.fix_missing_locations(tree), self.module, "exec", dont_inherit=True)
        code = _code_of(whole, self.function.split("."))
        target: object = import_module(self.module)
        *path, last = self.function.split(".")
        for part in path:
            target = getattr(target, part)
        found = vars(target)[last]
        if isinstance(found, property):
            found = found.fget
        elif isinstance(found, staticmethod | classmethod):
            found = found.__func__
        found.__code__ = code


def _code_of(code: types.CodeType, path: list[str]) -> types.CodeType:
    for part in path:
        code = next(c for c in code.co_consts if isinstance(c, types.CodeType) and c.co_name == part)
    return code


def mutants_of(module: str) -> list[Mutant]:
    """Return all mutants of a module, in the order of its text."""
    found: list[Mutant] = []
    names: Counter[str] = Counter()
    for function, qualified in _functions(_tree_of(module), ""):
        for number, kind, text in _places(function):
            name = f"{qualified}: {kind}: {text}"
            names[name] += 1
            if names[name] > 1:
                name += f" ({names[name]})"
            found.append(Mutant(module, qualified, name, number, kind))
    return found


def _tree_of(module: str) -> ast.Module:
    path = import_module(module).__file__
    assert path is not None
    return ast.parse(Path(path).read_text(encoding="utf-8"))


def _functions(node: ast.AST, prefix: str) -> Iterator[tuple[ast.FunctionDef, str]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.FunctionDef):
            yield child, prefix + child.name


def _places(function: ast.FunctionDef) -> Iterator[tuple[int, str, str]]:
    """Yield the changes that a function allows: the number of a node in it, a kind, and the text of that node."""
    left_alone: list[ast.AST] = [function.args, *function.decorator_list]  # evaluated when the function is defined
    left_alone += [
        node for node in ast.walk(function) if isinstance(node, ast.Assert)
    ]  # only a bug breaks an assertion
    unchanged = {inner for node in left_alone for inner in ast.walk(node)}
    for number, node in enumerate(ast.walk(function)):
        if node in unchanged:
            continue
        for kind, (applies, _) in _KINDS.items():
            if applies(node):
                yield number, kind, ast.unparse(node).partition("\n")[0][:80]


def _change(function: ast.FunctionDef, number: int, kind: str) -> None:
    node = next(each for place, each in enumerate(ast.walk(function)) if place == number)
    changed = _KINDS[kind][1](node)
    for parent in ast.walk(function):
        for field, value in ast.iter_fields(parent):
            if value is node:
                setattr(parent, field, changed)
            elif isinstance(value, list) and any(each is node for each in value):
                setattr(parent, field, [changed if each is node else each for each in value])


def _is_statement(node: ast.AST) -> bool:
    """Return whether a statement can be left out: calls, and changes of what outlives the function."""
    if isinstance(
        node, ast.Expr
    ):  # without `super()` the code would lack its cell, and could not replace the function's
        return isinstance(node.value, ast.Call) and not ast.unparse(node).startswith("super()")
    if isinstance(node, ast.AugAssign):
        return isinstance(node.target, ast.Attribute)
    return isinstance(node, ast.Assign) and all(isinstance(each, ast.Attribute) for each in node.targets)


def _compared(node: ast.AST) -> ast.AST:
    assert isinstance(node, ast.Compare)
    return ast.Compare(node.left, [_OPPOSITE[type(node.ops[0])]()], node.comparators)


def _calculated(node: ast.AST) -> ast.AST:
    assert isinstance(node, ast.BinOp)
    return ast.BinOp(node.left, _ARITHMETIC[type(node.op)](), node.right)


def _other_operator(node: ast.AST) -> ast.AST:
    assert isinstance(node, ast.BoolOp)
    return ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)


def _condition_reversed(node: ast.AST) -> ast.AST:
    assert isinstance(node, ast.If)
    return ast.If(ast.UnaryOp(ast.Not(), node.test), node.body, node.orelse)


def _is_int(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is int


_KINDS: dict[str, tuple[Callable[[ast.AST], bool], Callable[[ast.AST], ast.AST]]] = {
    "comparison": (lambda n: isinstance(n, ast.Compare) and len(n.ops) == 1, _compared),
    "arithmetic": (lambda n: isinstance(n, ast.BinOp) and type(n.op) in _ARITHMETIC, _calculated),
    "and/or": (lambda n: isinstance(n, ast.BoolOp), _other_operator),
    "condition": (lambda n: isinstance(n, ast.If), _condition_reversed),
    "number": (_is_int, lambda n: ast.Constant(getattr(n, "value", 0) + 1)),
    "truth": (lambda n: isinstance(n, ast.Constant) and type(n.value) is bool, lambda n: ast.Constant(not n.value)),  # type: ignore[attr-defined]
    "left out": (_is_statement, lambda _: ast.Pass()),
}  # fmt: skip
