"""What is documented as an attribute, a setting or an option is read by product code; nothing is for show."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Final

from tests.architecture.test_house_rules import ROOT, place, product_files, tree_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

GIVEN: Final = frozenset(
    [
        "Settings",
        "StoreSettings",
        "ConnectOptions",
        "StreamPlan",
        "Patience",
        "RetryPolicy",
        "SpawnBudget",
        "ExecutionBudget",
        "ApprovalPolicy",
        "Tool",
        "Secret",
        "Message",
        "Schedule",
        "Limit",
        "RunFilter",
        "NewRun",
        "Order",
        "Host",
        "Completion",
        "TextDelta",
        "ReasoningDelta",
        "Restart",
        "Usage",
        "ToolCall",
    ]
)
"""Values that somebody gives us, each of whose fields changes something."""

TOLD: Final = frozenset(
    [
        "Supervision",
        "HookEvent",
        "RunMeta",
        "AskOutcome",
        "Approval",
        "RunStatusSummary",
        "RunResult",
        "RunHandle",
        "RunEvent",
        "Event",
        "Status",
        "Delta",
        "ToolSpec",
    ]
)
"""Values that we make for somebody, each of whose fields is set somewhere."""

NO_VALUES: Final = {
    # Exported names that are no values with fields of their own.
    *(
        "ActorClient",
        "ActorsError",
        "Agent",
        "AgentId",
        "AskKind",
        "ChatMessage",
        "Clock",
        "EntryKind",
        "HistoryRetention",
        "ModelFacts",
        "ModelRegistry",
        "RunLogEntry",
        "SystemClock",
        "Tracing",
    ),
    *(
        "InvocationResult",
        "JetStreamConnection",
        "JetStreamTransport",
        "PostgresStore",
        "RedisJournal",
    ),
    *("Risk", "RunContext", "RunId", "RunStatus", "Runtime", "Selected", "Subjects", "TopicId"),
    *("Heartbeat", "Takeover", "Result", "RunRef", "SpawnDenied"),
    *("EffectDidNotHappen", "RetryAfter"),
    # Classes whose parameters `CALLED` holds.
    *("CompactionPipeline", "ContextConfig", "InMemoryHistoryProvider", "RecallStrategy"),
    *("SelectiveToolCallCompactionStrategy", "SlidingWindowCompaction", "SummarizationCompaction"),
    *("PostgresHistoryProvider", "RedisHistoryProvider", "StoreHistory"),
    *("AGEGraphStore", "PgVectorStore", "PostgresGraphStore"),
    *("TokenBudgetComposedStrategy", "ToolResultCompactionStrategy", "TruncationStrategy"),
    # What authors and their models' clients tell each other; a response is recorded whole.
    *("CompactionStrategy", "HistoryProvider", "ToolResult"),
    *("ContentBlock", "GenerationOptions", "LLMClient", "LLMResponse", "StreamEvent"),
}
CALLED: Final = frozenset(
    [
        "AgentMemory",
        "InMemoryLongTermMemory",
        "PostgresLongTermMemory",
        "Client",
        "RunContext",
        "Schedules",
        "ActorClient",
        "FunctionAgent",
        "CompactionPipeline",
        "ContextConfig",
        "InMemoryHistoryProvider",
        "StoreHistory",
        "PostgresHistoryProvider",
        "RedisHistoryProvider",
        "InMemoryGraphStore",
        "InMemoryVectorStore",
        "AGEGraphStore",
        "PgVectorStore",
        "PostgresGraphStore",
        "RecallStrategy",
        "SelectiveToolCallCompactionStrategy",
        "SlidingWindowCompaction",
        "SummarizationCompaction",
        "TokenBudgetComposedStrategy",
        "ToolResultCompactionStrategy",
        "TruncationStrategy",
    ]
)
"""Classes whose methods authors and operators call: each parameter of theirs is used."""

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class Uses:
    """Names that code reads from objects, and gives to calls by keyword, with the classes around."""

    reads: list[tuple[str, str | None]] = field(default_factory=list)
    """Attribute, and the class whose `self` it is read from."""
    texts: set[str] = field(default_factory=set)
    """Names asked for as text: `getattr(x, "name")`, also in a loop over such names."""
    calls: dict[str, list[ast.Call]] = field(default_factory=dict)
    """Calls, by the last part of what is called."""

    @classmethod
    def of(cls, trees: Iterable[ast.AST]) -> Uses:
        """What these modules use."""
        uses = cls()
        for tree in trees:
            uses._walk(tree, None)
        return uses

    def _walk(self, node: ast.AST, owner: str | None) -> None:
        if isinstance(node, ast.ClassDef):
            owner = node.name
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            is_self = isinstance(node.value, ast.Name) and node.value.id == "self"
            self.reads.append((node.attr, owner if is_self else None))
        elif isinstance(node, ast.Call):
            self.calls.setdefault(ast.unparse(node.func).rpartition(".")[2], []).append(node)
            if isinstance(node.func, ast.Name) and node.func.id == "getattr":
                self.texts |= {arg.value for arg in node.args[1:2] if isinstance(arg, ast.Constant)}  # type: ignore[misc]
        elif isinstance(node, ast.For | ast.comprehension) and isinstance(node.iter, ast.Tuple):
            self.texts |= {
                str(constant.value)
                for constant in node.iter.elts
                if isinstance(constant, ast.Constant)
            }
        for child in ast.iter_child_nodes(node):
            self._walk(child, owner)

    def set(self, class_: ast.ClassDef) -> set[str]:
        """The fields that some call gives: of the class itself, or of one that changes a copy."""
        fields: set[str] = set()
        for call in self.calls.get(class_.name, []) + self.calls.get("cls", []):
            fields |= {*fields_of(class_)[: len(call.args)]}
        for name in (class_.name, "cls", "replace", "model_copy"):
            for call in self.calls.get(name, []):
                fields |= {keyword.arg for keyword in call.keywords if keyword.arg is not None}
                fields |= {
                    str(key.value)
                    for keyword in call.keywords
                    if keyword.arg == "update" and isinstance(keyword.value, ast.Dict)
                    for key in keyword.value.keys
                    if isinstance(key, ast.Constant)
                }
        return fields

    def read(self, name: str, class_: str) -> bool:
        """Whether the field is read: from any object, or by a method of its own class."""
        return name in self.texts or any(
            attr == name and owner in (None, class_) for attr, owner in self.reads
        )


def class_in(tree: ast.AST, name: str) -> ast.ClassDef:
    """The class of this name."""
    return next(
        node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == name
    )


def classes_named(names: frozenset[str]) -> list[ast.ClassDef]:
    """The classes of the product with these names, wherever they are."""
    nodes = (node for file in product_files() for node in tree_of(file).body)
    classes = [node for node in nodes if isinstance(node, ast.ClassDef) and node.name in names]
    assert {node.name for node in classes} == names
    return classes


def fields_of(class_: ast.ClassDef) -> list[str]:
    """The fields that its body declares."""
    names = (
        statement.target.id
        for statement in class_.body
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
        if not ast.unparse(statement.annotation).startswith("ClassVar")
    )
    return [name for name in names if not name.startswith("_")]


def unused_parameters(function: FunctionNode) -> Iterator[str]:
    """Parameters that a body never mentions."""
    args = function.args
    parameters = [*args.posonlyargs, *args.args, *args.kwonlyargs]
    body = [statement for statement in function.body if not _is_text(statement)]
    if not body or (len(body) == 1 and ast.unparse(body[0]) == "..."):
        return
    used = {
        node.id for statement in body for node in ast.walk(statement) if isinstance(node, ast.Name)
    }
    yield from (
        parameter.arg for parameter in parameters if parameter.arg not in {"self", "cls"} | used
    )


def _is_text(node: ast.stmt) -> bool:
    is_constant = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return is_constant and ast.unparse(node) != "..."


@cache
def product() -> Uses:
    """What all that ships uses."""
    return Uses.of(tree_of(file) for file in product_files())


def agent_attributes() -> list[str]:
    """The optional attributes that `Agent` documents, and those that `@agent` takes."""
    (agent,) = classes_named(frozenset({"Agent"}))
    doc = ast.get_docstring(agent) or ""
    section = doc[doc.index("Optional attributes") :]
    section = re.sub(r"\([^()]*\)", "", section)  # what stands in brackets says what they are
    names = re.findall(r"`(\w+)`", section.partition("which only")[0])
    (function_agent,) = classes_named(frozenset({"FunctionAgent"}))
    init = next(
        method
        for method in function_agent.body
        if isinstance(method, ast.FunctionDef) and method.name == "__init__"
    )
    parameters = [arg.arg for arg in init.args.kwonlyargs if arg.arg != "schemas"]
    return [*names, *(name for name in parameters if name not in names)]


def test_every_documented_attribute_of_an_agent_is_read() -> None:
    """By the runtime, as `getattr` or as an attribute of an agent."""
    uses = Uses.of(tree_of(file) for file in product_files() if "actors" in file.parts)

    names = agent_attributes()

    assert {"model", "retry", "deadline_s", "version", "concurrency", "context"} <= set(names)
    assert [name for name in names if name not in uses.texts] == []


def test_every_field_that_a_caller_gives_is_read() -> None:
    """Settings, policies, budgets, tools, messages: whatever can be said has an effect."""
    uses = product()

    unread = [
        f"{class_.name}.{field}"
        for class_ in classes_named(GIVEN)
        for field in fields_of(class_)
        if not uses.read(field, class_.name)
    ]

    assert unread == []


def test_every_setting_is_read_where_hosts_are_made() -> None:
    """Outside of the module that declares it, or by a property of it that is."""
    files = [file for file in product_files() if file != ROOT / "compose/_assembly/settings.py"]
    elsewhere = Uses.of(tree_of(file) for file in files if file.is_relative_to(ROOT / "compose"))
    settings = class_in(tree_of(ROOT / "compose/_assembly/settings.py"), "Settings")
    properties = {
        method.name: {node.attr for node in ast.walk(method) if isinstance(node, ast.Attribute)}
        for method in settings.body
        if isinstance(method, ast.FunctionDef)
    }

    def is_read(name: str) -> bool:
        by = {name, *(prop for prop, reads in properties.items() if name in reads)}
        return any(elsewhere.read(attribute, "Settings") for attribute in by) or name in logins

    logins = _texts(ROOT / "compose/_assembly/settings.py", "NATS_LOGIN")
    assert [name for name in fields_of(settings) if not is_read(name)] == []


def _texts(file: Path, name: str) -> set[str]:
    """The texts of a constant, each of which is read as a field elsewhere."""
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == name:
            return {n.value for n in ast.walk(node) if isinstance(n, ast.Constant)}  # type: ignore[misc]
    raise AssertionError(name)


def test_every_field_that_a_caller_reads_is_set() -> None:
    """What a hook, a caller or a watcher can look at is more than a default."""
    uses = product()

    never = [
        f"{class_.name}.{field}"
        for class_ in classes_named(TOLD)
        for field in fields_of(class_)
        if field not in uses.set(class_)
    ]

    assert never == []


def test_every_parameter_that_a_caller_gives_is_used() -> None:
    """Of the calls of authors, programs and outside services, and of every command."""
    commands = [file for file in product_files() if ROOT / "compose/_commands" in file.parents]
    functions = [
        (file, function)
        for file in commands
        for function in tree_of(file).body
        if isinstance(function, FunctionNode) and not function.name.startswith("_")
    ]
    for file in product_files():
        for class_ in (node for node in tree_of(file).body if isinstance(node, ast.ClassDef)):
            if class_.name in CALLED:
                methods = [node for node in class_.body if isinstance(node, FunctionNode)]
                functions += [(file, method) for method in methods if method.name != "__aexit__"]

    unused = [
        f"{place(file, function)} {function.name}({parameter})"
        for file, function in functions
        for parameter in unused_parameters(function)
    ]

    assert unused == []


def test_every_exported_value_is_one_that_is_given_or_told() -> None:
    """So that a new one is looked at by the tests above."""
    strange = []
    packages = ("actors/__init__", "broker/__init__", "compose/__init__")
    for module in (*packages, "persistence/postgres", "persistence/redis"):
        for node in ast.walk(tree_of(ROOT / f"{module}.py")):
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                strange += [
                    constant.value
                    for constant in ast.walk(node)
                    if isinstance(constant, ast.Constant)
                ]
    known_names = {*GIVEN, *TOLD, *NO_VALUES}

    assert [
        name
        for name in strange
        if isinstance(name, str)
        and name[:1].isupper()
        and not name.endswith("Error")
        and name not in known_names
    ] == []


SHOW = """
class Policy:
    used: int = 1
    by_itself: int = 2
    for_show: int = 3

    def wait_s(self):
        return self.by_itself

class Other:
    for_show: int

    def look(self):
        return self.for_show

def act(policy, agent, unused=None):
    getattr(agent, "asked", None)
    return Policy(used=policy.used)
"""


def test_a_field_that_is_only_declared_is_found() -> None:
    """Also where another class has one of the same name; so are attributes and parameters."""
    tree = ast.parse(SHOW)
    uses, policy = Uses.of([tree]), class_in(tree, "Policy")

    assert [name for name in fields_of(policy) if not uses.read(name, "Policy")] == ["for_show"]
    assert uses.set(policy) == {"used"}
    assert uses.texts == {"asked"}
    assert list(unused_parameters(tree.body[-1])) == ["unused"]  # type: ignore[arg-type]
