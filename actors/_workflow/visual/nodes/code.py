"""Code nodes: the body of a Python function, which the sandbox of flow documents interprets."""

from __future__ import annotations

import keyword
import re
import textwrap
from typing import Any, Final

from actors._workflow.documents import sandbox
from actors._workflow.visual.drawing import DrawnNode
from actors._workflow.visual.expressions import functions_for
from actors._workflow.visual.passes import INPUT
from actors._workflow.visual.visits import Outputs, Visit, VisualNodeError

_LIMITS: Final = sandbox.SandboxLimits()
_LINE: Final = re.compile(r"\(line (\d+)\)")


def source_of(node: DrawnNode) -> tuple[str, int]:
    """Return the code for the sandbox, and the number of its lines before the author's lines."""
    data = node.data
    name = data.get("functionName")
    function = name if isinstance(name, str) and name.isidentifier() else "transform"
    if not isinstance(data.get("codeBody"), str):
        code = str(data.get("code") or f"def {function}({INPUT}):\n    return {INPUT}")
        functions = functions_for(code)
        return f"{functions}{code}\n{function}({INPUT})", functions.count("\n")
    head = [f"def {function}({INPUT}):"]
    pins = [pin for pin in node.pins("inputs") if pin != "permissions"]
    head += [f"    {_identifier(pin)} = {INPUT}.get({pin!r})" for pin in pins]
    body = textwrap.dedent(data["codeBody"].replace("\r\n", "\n")).strip("\n")
    if not body.strip():
        body = f"return {INPUT}"
    lines = [*head, textwrap.indent(body, "    "), f"{function}({INPUT})"]
    functions = functions_for(body)
    return functions + "\n".join(lines), functions.count("\n") + len(head)


def _identifier(pin: str) -> str:
    name = re.sub(r"\W", "_", pin, flags=re.ASCII)
    if not name.isidentifier():
        name = f"p_{name}"
    return f"{name}_" if keyword.iskeyword(name) else name


def problem_of(node: DrawnNode) -> tuple[str, str] | None:
    """Return the reason why the code cannot be interpreted, and the remedy; None if the sandbox can read it."""
    permissions = node.part("pinDefaults").get("permissions")
    if permissions not in {None, "", "sandbox"}:
        problem = (
            f"it asks for the permissions {permissions!r}; code is interpreted in the sandbox only"
        )
        return problem, "Use a tool for access outside of the sandbox"
    if not sandbox.is_available():
        install_problem = "code needs pydantic-monty, which is not installed"
        return install_problem, "Install callboard[flows]"
    code, line_offset = source_of(node)
    unreadable_part = sandbox.unreadable(code)
    remedy = "Correct it, or use only what the sandbox supports"
    return (
        None
        if unreadable_part is None
        else (_at_author_lines(unreadable_part, line_offset), remedy)
    )


def _at_author_lines(problem: str, line_offset: int) -> str:
    """Return a text with the line numbers of the author's code."""
    return _LINE.sub(lambda match: f"(line {max(1, int(match[1]) - line_offset)})", problem)


def result_of(node: DrawnNode, pins: dict[str, Any]) -> Any:
    """Return the value that the code returns.

    Raises:
        VisualNodeError: The code raised, or exceeded a limit.
    """
    code, line_offset = source_of(node)
    inputs = {name: value for name, value in pins.items() if name != "permissions"}
    try:
        return sandbox.evaluate(code, {INPUT: inputs}, _LIMITS)
    except sandbox.SandboxError as exc:
        raise VisualNodeError(_at_author_lines(str(exc), line_offset)) from None


def outputs_of(result: Any) -> Outputs:
    """Return the outputs of a code node for the code's return value."""
    values = result if isinstance(result, dict) else {}
    return {**values, "success": True, "output": result, "result": result}


def compute(_visit: Visit, node: DrawnNode, pins: dict[str, Any]) -> Outputs:
    """Return the outputs of a code node that is not a step."""
    return outputs_of(result_of(node, pins))
