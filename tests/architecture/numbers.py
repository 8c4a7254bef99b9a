"""The numbers of the house: how many pieces, and how they read. `python -m tests.architecture.numbers`.

They are counted from the text of the product. `poe check` prints them; `test_numbers.py` holds them.
"""

from __future__ import annotations

import ast
import re
import statistics
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

from tests.architecture.test_house_rules import FunctionNode, place, product_files, tree_of

PARTICIPLES: Final = frozenset(
    [
        "one",
        "found",
        "known",
        "told",
        "place",
        "given",
        "said",
        "wanted",
        "kept",
        "shown",
        "asked",
        "gone",
        "made",
        "left",
        "there",
        "taken",
        "listed",
        "chosen",
        "named",
        "held",
    ]
)
"""Names of values that say what happened to a thing, not which thing it is."""
SMALL: Final = 80
LARGE: Final = 450
HELPER_LINES: Final = 6
MANY_ARGUMENTS: Final = 7
BROAD: Final = frozenset(["Exception", "BaseException"])
_NOQA: Final = re.compile(r"noqa: [A-Z]+\d+(?:, [A-Z]+\d+)*(?: - )?")
_POINTER: Final = re.compile(r"(?:See|As|Like|(?:Do |Return )?[Tt]he same as) `[^`]+`(?: does)?\.")


@dataclass(frozen=True)
class Module:
    """A module of the product.

    Attributes:
        name: Its path in the repository.
        code: Number of lines that are neither blank nor a comment nor a docstring.
        imports: Number of lines of its imports.
        participles: Number of uses of `PARTICIPLES` as names of values.
        helpers: Private functions of at most `HELPER_LINES` lines that one place uses.
        many_arguments: Number of calls with `MANY_ARGUMENTS` positional arguments or more.
        reasons: Number of lines that are a comment.
        unexplained_excepts: Number of `except Exception` and `except BaseException` without a comment in
            their line or in the line above.
        pointing_docstrings: Number of docstrings that say only where something else is described.
        has_errors: True if it has a class of errors.
    """

    name: str
    code: int
    imports: int
    participles: int
    helpers: int
    many_arguments: int
    reasons: int
    unexplained_excepts: int
    pointing_docstrings: int
    has_errors: bool
    importers: set[str] = field(default_factory=set)

    @property
    def room(self) -> str:
        """The folder."""
        return self.name.rpartition("/")[0]

    @property
    def is_public(self) -> bool:
        """True if users may import it: no part of its path has an underscore at its head."""
        parts = self.name.removesuffix(".py").split("/")
        return not any(part.startswith("_") and not part.startswith("__") for part in parts)

    @property
    def is_room(self) -> bool:
        """True for the module of a package."""
        return self.name.endswith(("__init__.py", "__main__.py"))


@cache
def modules() -> dict[str, Module]:
    """Return the modules of the product by path."""
    found = {place(file): _module(file) for file in product_files()}
    for name, targets in ((place(file), imported(file)) for file in product_files()):
        for target in targets & found.keys() - {name}:
            found[target].importers.add(name)
    return found


def imported(file: Path) -> set[str]:
    """Return the paths of what a module may import; some are names in modules, and no modules."""
    paths: set[str] = set()
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.ImportFrom) and node.module is not None and not node.level:
            base = node.module.replace(".", "/")
            paths |= {f"{base}.py", *(f"{base}/{alias.name}.py" for alias in node.names)}
        elif isinstance(node, ast.Import):
            paths |= {f"{alias.name.replace('.', '/')}.py" for alias in node.names}
    return paths


def _module(file: Path) -> Module:
    tree, docs = tree_of(file), set[int]()
    uses, counts = Counter[str](), Counter[str]()
    lines = file.read_text(encoding="utf-8").splitlines()
    comments = {n for n, line in enumerate(lines, 1) if line.lstrip().startswith("#")}
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant(value=str())):
                docs |= set(range(node.lineno, (node.end_lineno or 0) + 1))
            case ast.Import() | ast.ImportFrom():
                counts["imports"] += (node.end_lineno or 0) - node.lineno + 1
            case ast.Name():
                uses[node.id] += 1
                counts["participles"] += node.id.strip("_") in PARTICIPLES
            case ast.Attribute():
                uses[node.attr] += 1
            case ast.Call():
                positional = [arg for arg in node.args if not isinstance(arg, ast.Starred)]
                counts["many"] += len(positional) >= MANY_ARGUMENTS
            case ast.Constant(value=str()) | ast.JoinedStr() if node.end_lineno != node.lineno:
                comments -= set(range(node.lineno + 1, (node.end_lineno or 0) + 1))
            case ast.ExceptHandler():
                counts["unexplained"] += is_broad(node) and not has_reason(lines, node.lineno)
            case ast.ClassDef():
                counts["errors"] += node.name.endswith(("Error", "Errors"))
    return Module(
        name=place(file),
        code=sum(
            bool(line.strip()) and line.strip()[0] != "#" and n not in docs
            for n, line in enumerate(lines, 1)
        ),
        imports=counts["imports"],
        participles=counts["participles"],
        helpers=sum(_is_helper(node, uses) for node in ast.walk(tree)),
        many_arguments=counts["many"],
        reasons=len(comments),
        unexplained_excepts=counts["unexplained"],
        pointing_docstrings=sum(_is_pointer(node) for node in ast.walk(tree)),
        has_errors=bool(counts["errors"]),
    )


def is_broad(handler: ast.ExceptHandler) -> bool:
    """Return True if an `except` catches every error."""
    types = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(
        type_ is None or (isinstance(type_, ast.Name) and type_.id in BROAD) for type_ in types
    )


def has_reason(lines: list[str], number: int) -> bool:
    """Return True if a comment stands in a line, or alone in the line above; a bare `noqa` is none."""
    _, _, comment = lines[number - 1].partition("#")
    return bool(_NOQA.sub("", comment).strip()) or lines[number - 2].lstrip().startswith("#")


def _is_pointer(node: ast.AST) -> bool:
    if not isinstance(node, FunctionNode | ast.ClassDef):
        return False
    text = ast.get_docstring(node)
    return text is not None and _POINTER.fullmatch(" ".join(text.split())) is not None


def _is_helper(node: ast.AST, uses: Counter[str]) -> bool:
    if not isinstance(node, FunctionNode) or node.name.startswith("__"):
        return False
    lines = (node.end_lineno or 0) - node.lineno + 1
    if ast.get_docstring(node) is not None:
        lines -= (node.body[0].end_lineno or 0) - node.body[0].lineno + 1
    return node.name.startswith("_") and uses[node.name] == 1 and lines <= HELPER_LINES


def small_modules() -> list[str]:
    """Return the modules under `SMALL` lines of code that two other rooms do not import.

    Modules of errors, public modules, and those of packages may be small.
    """
    return [
        module.name
        for module in modules().values()
        if not module.is_room and not module.has_errors and module.code < SMALL
        if not module.is_public
        if sum(modules()[name].room != module.room for name in module.importers) < 2
    ]


def large_modules() -> dict[str, int]:
    """Return the modules over `LARGE` lines of code, with their lines."""
    return {name: module.code for name, module in modules().items() if module.code > LARGE}


def lonely_modules() -> list[str]:
    """Return the modules that only one module imports, which is in the same folder."""
    return [
        module.name
        for module in modules().values()
        if not module.is_room and not module.is_public and len(module.importers) == 1
        if modules()[next(iter(module.importers))].room == module.room
    ]


def totals() -> dict[str, int]:
    """Return the ratchets: numbers that may only fall."""
    every = modules().values()
    return {
        "participles": sum(module.participles for module in every),
        "helpers": sum(module.helpers for module in every),
        "many_arguments": sum(module.many_arguments for module in every),
        "unexplained_excepts": sum(module.unexplained_excepts for module in every),
        "pointing_docstrings": sum(module.pointing_docstrings for module in every),
        "modules": sum(not module.is_room and not module.is_public for module in every),
        "public_modules": sum(module.is_public for module in every),
        "lonely_modules": len(lonely_modules()),
    }


def reasons() -> int:
    """Return the number of lines that are a comment: the reasons at the line. It may only rise."""
    return sum(module.reasons for module in modules().values())


def worst(number: str, count: int = 10) -> list[str]:
    """Return the modules with the most of a number of `totals`."""
    if number not in Module.__dataclass_fields__:
        return lonely_modules()[:count] if number == "lonely_modules" else []
    ordered = sorted(modules().values(), key=lambda module: -getattr(module, number))
    return [f"{module.name} ({getattr(module, number)})" for module in ordered[:count]]


def main() -> None:
    """Write the numbers."""
    private = [module for module in modules().values() if not module.is_public]
    code = sum(module.code for module in private)
    sizes = [module.code for module in private if not module.is_room]
    imports = sum(module.imports for module in private)
    folders: defaultdict[str, int] = defaultdict(int)
    for module in modules().values():
        folders[module.room] += 1
    lines = [
        f"{code} lines of code without the public modules, in {len(folders)} folders",
        f"median {statistics.median(sizes):g} lines a module",
        f"imports are {100 * imports / code:.1f} % of it; {len(small_modules())} small modules",
        f"{reasons()} lines of reasons",
    ]
    for number, total in totals().items():
        most = ", ".join(worst(number, 3)) or "-"
        lines.append(f"{number.replace('_', ' ')}: {total}; most: {most}")
    sys.stdout.write("\n".join([*lines, ""]))


if __name__ == "__main__":
    main()
