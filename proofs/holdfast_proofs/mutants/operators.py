"""What is changed: one place of a module at a time, in the ways people get it wrong.

* a comparison: `<` for `<=`, `==` for `!=`, `is` for `is not`, `in` for `not in`
* `and` for `or`; `not` left out; a condition turned round
* a constant: a number one higher, True for False, a text of a comparison or a table another one
* arithmetic: `+` for `-`, `<<` for `>>`, `|` for `&`, `min` for `max`
* a guard left out; a case left out; a statement left out; an element of a table left out
* None returned instead of a value

Left alone: annotations, docstrings, messages (text that no decision looks at), class options.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import cast

_COMPARE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
    ast.BitXor: ast.BitOr,
    ast.Mod: ast.Mult,
    ast.Div: ast.Mult,
}
_CALLS = {"min": "max", "max": "min"}
OTHER_TEXT = "another"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One change. `key` stays the same while the code around it moves."""

    module: str
    key: str
    line: int
    shown: str
    number: int  # of the change, in the order in which `find_changes` yields them


Change = Callable[[], None]


def find_mutants(module: str, source: str) -> list[Mutant]:
    """All mutants of this source, in order."""
    seen: dict[str, int] = {}
    mutants: list[Mutant] = []
    for number, (line, where, shown, _) in enumerate(find_changes(ast.parse(source))):
        name = f"{where}: {shown}"
        seen[name] = seen.get(name, 0) + 1
        key = name if seen[name] == 1 else f"{name} ({seen[name]})"
        mutants.append(Mutant(module=module, key=key, line=line, shown=shown, number=number))
    return mutants


def mutated(source: str, number: int) -> ast.Module:
    """The tree of this source with one change made."""
    tree = ast.parse(source)
    for at, (_, _, _, change) in enumerate(find_changes(tree)):
        if at == number:
            change()
            return ast.fix_missing_locations(tree)
    raise IndexError(f"there is no change {number}")


Found = tuple[int, str, str, Change]  # line, function, what is shown, the change itself


def find_changes(tree: ast.Module) -> Iterator[Found]:
    yield from _Walk().body(tree, "module")


class _Walk:
    """Goes through a tree and yields each change without making it."""

    def body(self, node: ast.AST, where: str) -> Iterator[Found]:
        for field in ("body", "orelse", "finalbody"):
            statements = cast("list[ast.stmt] | ast.expr | None", getattr(node, field, None))
            if isinstance(statements, list):
                yield from self._statements(statements, where)

    def _statements(self, statements: list[ast.stmt], where: str) -> Iterator[Found]:
        for at, statement in enumerate(statements):
            yield from self._removal(statements, at, where)
            yield from self._statement(statement, where)

    def _statement(self, node: ast.stmt, where: str) -> Iterator[Found]:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                inner = node.name if where == "module" else f"{where}.{node.name}"
                defaults = [*node.args.defaults, *(d for d in node.args.kw_defaults if d)]
                for default in defaults:
                    yield from self._expression(default, inner, text=False)
                yield from self.body(node, inner)
            case ast.ClassDef():
                yield from self.body(node, node.name if where == "module" else where)
            case ast.If():
                yield from self._condition(node, where)
                if not _is_type_checking(node.test):
                    yield from self.body(node, where)
            case ast.While():
                yield from self._condition(node, where)
                yield from self.body(node, where)
            case ast.Match():
                yield from self._match(node, where)
            case ast.Return():
                yield from self._return(node, where)
            case ast.Try():
                yield from self.body(node, where)
                for handler in node.handlers:
                    yield from self.body(handler, where)
            case ast.Raise() | ast.Import() | ast.ImportFrom():
                return  # what is raised is its own matter; that it is raised is the guard's
            case ast.With() | ast.AsyncWith() | ast.For() | ast.AsyncFor():
                for part in _own_expressions(node):
                    yield from self._expression(part, where, text=False)
                yield from self.body(node, where)
            case ast.AnnAssign():
                if node.value is not None:
                    yield from self._expression(node.value, where, text=_is_table(node.value))
            case ast.Assign():
                yield from self._expression(node.value, where, text=_is_table(node.value))
            case ast.AugAssign():
                yield from self._swap_operator(node, where)
                yield from self._expression(node.value, where, text=False)
            case ast.Expr():
                if not isinstance(node.value, ast.Constant):  # a docstring
                    yield from self._expression(node.value, where, text=False)
            case _:
                return

    # statements

    def _removal(self, statements: list[ast.stmt], at: int, where: str) -> Iterator[Found]:
        node = statements[at]

        def change() -> None:
            statements[at] = ast.copy_location(ast.Pass(), node)

        if _is_removable(node) and where != "module":
            yield node.lineno, where, f"left out: {_shown(node)}", change

    def _condition(self, node: ast.If | ast.While, where: str) -> Iterator[Found]:
        if _is_type_checking(node.test):
            return
        guard = isinstance(node, ast.If) and isinstance(
            node.body[-1], ast.Return | ast.Raise | ast.Continue | ast.Break
        )
        test = node.test

        def drop() -> None:
            node.test = ast.Constant(value=False)

        def turn() -> None:
            node.test = ast.UnaryOp(op=ast.Not(), operand=test)

        if guard:
            yield test.lineno, where, f"guard left out: {_shown(test)}", drop
        if not isinstance(test, ast.Compare | ast.UnaryOp):
            yield test.lineno, where, f"turned round: {_shown(test)}", turn
        yield from self._expression(test, where, text=True)

    def _match(self, node: ast.Match, where: str) -> Iterator[Found]:
        for at, case in enumerate(node.cases):
            wild = isinstance(case.pattern, ast.MatchAs) and case.pattern.pattern is None

            def drop(at: int = at) -> None:
                del node.cases[at]

            if not wild and len(node.cases) > 1:
                yield case.pattern.lineno, where, f"case left out: {_shown(case.pattern)}", drop
            if case.guard is not None:
                yield from self._expression(case.guard, where, text=True)
            if not _is_never(case.body):
                yield from self.body(case, where)

    def _return(self, node: ast.Return, where: str) -> Iterator[Found]:
        value = node.value
        if value is None or (isinstance(value, ast.Constant) and value.value is None):
            return

        def nothing() -> None:
            node.value = ast.Constant(value=None)

        yield node.lineno, where, f"None for: return {_shown(value)}", nothing
        yield from self._expression(value, where, text=False)

    # expressions

    def _expression(self, node: ast.expr, where: str, *, text: bool) -> Iterator[Found]:
        match node:
            case ast.Compare():
                yield from self._compare(node, where)
                text = True
            case ast.BoolOp():
                yield from self._bool(node, where)
            case ast.BinOp():
                yield from self._swap_operator(node, where)
            case ast.UnaryOp(op=ast.Not()):
                yield from self._un_not(node, where)
            case ast.IfExp():
                yield from self._if_expression(node, where)
            case ast.Constant():
                yield from self._constant(node, where, text=text)
            case ast.Tuple() | ast.Set() | ast.List() | ast.Dict() if text:
                yield from self._table(node, where)
            case ast.Call():
                yield from self._call(node, where)
                text = _is_table(node)
            case ast.JoinedStr() | ast.Lambda():
                return
            case _:
                pass
        for child in _own_expressions(node):
            yield from self._expression(child, where, text=text)

    def _compare(self, node: ast.Compare, where: str) -> Iterator[Found]:
        for at, operator in enumerate(node.ops):

            def change(at: int = at, operator: ast.cmpop = operator) -> None:
                node.ops[at] = _COMPARE[type(operator)]()

            after = copy.deepcopy(node)
            after.ops[at] = _COMPARE[type(operator)]()
            yield node.lineno, where, f"{_shown(node)} -> {_shown(after)}", change

    def _bool(self, node: ast.BoolOp, where: str) -> Iterator[Found]:
        other: ast.boolop = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        after = copy.deepcopy(node)
        after.op = other

        def change() -> None:
            node.op = other

        yield node.lineno, where, f"{_shown(node)} -> {_shown(after)}", change
        for at, part in enumerate(node.values):

            def drop(at: int = at) -> None:
                node.values[at] = ast.Constant(value=isinstance(node.op, ast.And))

            yield part.lineno, where, f"of {_shown(node)} left out: {_shown(part)}", drop

    def _swap_operator(self, node: ast.BinOp | ast.AugAssign, where: str) -> Iterator[Found]:
        swapped = _ARITHMETIC.get(type(node.op))
        if swapped is None:
            return
        after = copy.deepcopy(node)
        after.op = swapped()

        def change() -> None:
            node.op = swapped()

        yield node.lineno, where, f"{_shown(node)} -> {_shown(after)}", change

    def _un_not(self, node: ast.UnaryOp, where: str) -> Iterator[Found]:
        def change() -> None:
            # `not not x`: the same truth as x, in the place of `not x`.
            node.operand = ast.UnaryOp(op=ast.Not(), operand=node.operand)

        yield node.lineno, where, f"not left out: {_shown(node)}", change

    def _if_expression(self, node: ast.IfExp, where: str) -> Iterator[Found]:
        test = node.test

        def turn() -> None:
            node.test = ast.UnaryOp(op=ast.Not(), operand=test)

        if not isinstance(test, ast.Compare | ast.UnaryOp):
            yield test.lineno, where, f"turned round: {_shown(test)}", turn

    def _constant(self, node: ast.Constant, where: str, *, text: bool) -> Iterator[Found]:
        value = node.value
        if isinstance(value, bool):
            other: object = not value
        elif isinstance(value, int | float):
            other = value + 1
        elif isinstance(value, str) and text:
            other = OTHER_TEXT
        elif isinstance(value, bytes):
            other = value + b"!"
        else:
            return

        def change() -> None:
            node.value = other

        yield node.lineno, where, f"{value!r} -> {other!r}", change

    def _table(self, node: ast.Tuple | ast.Set | ast.List | ast.Dict, where: str) -> Iterator[Found]:
        if isinstance(node, ast.Dict):
            for at, name in enumerate(node.keys):

                def drop_pair(at: int = at) -> None:
                    del node.keys[at], node.values[at]

                if name is not None:
                    yield name.lineno, where, f"left out of a table: {_shown(name)}", drop_pair
            return
        elements = node.elts
        for at, element in enumerate(elements):

            def drop(at: int = at) -> None:
                del elements[at]

            if not isinstance(element, ast.Tuple):
                yield element.lineno, where, f"left out of {_shown(node)}: {_shown(element)}", drop

    def _call(self, node: ast.Call, where: str) -> Iterator[Found]:
        function = node.func
        if not isinstance(function, ast.Name) or function.id not in _CALLS:
            return

        def change() -> None:
            function.id = _CALLS[function.id]

        yield node.lineno, where, f"{_CALLS[function.id]} for: {_shown(node)}", change


def _own_expressions(node: ast.AST) -> Iterator[ast.expr]:
    """The expressions right below, without annotations and names that are bound."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            if not isinstance(child, ast.Name) and not _is_raised(node):
                yield child
        elif isinstance(child, ast.keyword | ast.withitem | ast.comprehension):
            yield from _own_expressions(child)


def _is_raised(node: ast.AST) -> bool:
    """Errors and their words: what they say is no decision."""
    if not isinstance(node, ast.Call):
        return False
    name = node.func.id if isinstance(node.func, ast.Name) else ""
    return name in ("InvariantViolated", "JournalDamaged", "LeaseLost", "BadReference", "Notice")


def _is_removable(node: ast.stmt) -> bool:
    match node:
        case ast.Expr(value=ast.Call() | ast.Await()):
            return True
        case ast.AugAssign():
            return True
        case ast.Assign(targets=[target]):
            return not isinstance(target, ast.Name)
        case _:
            return False


def _is_table(node: ast.expr) -> bool:
    """A tuple, dict or set by itself, or in the hands of frozenset: texts in it are decisions."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "frozenset"
    return isinstance(node, ast.Tuple | ast.Set | ast.List | ast.Dict)


def _is_never(body: list[ast.stmt]) -> bool:
    return "assert_never" in ast.unparse(body[0])


def _is_type_checking(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "TYPE_CHECKING"


def _shown(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 90 else f"{text[:87]}..."
