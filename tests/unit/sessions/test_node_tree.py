"""Nodes of a session as the lines of a tree."""

from __future__ import annotations

from datetime import UTC, datetime

from actors._kernel.agent.message import ChatMessage, ContentBlock
from actors._kernel.agent.transcript import Turn
from compose._commands.sessions.look import lines_of_blocks, node_text, tree_of

AT = datetime(2026, 1, 1, tzinfo=UTC)


def turns(*pairs: str) -> list[Turn]:
    """Nodes written as PARENT>ID, in order; the first has no parent."""
    nodes = []
    for ordinal, pair in enumerate(pairs):
        parent, _, id_ = pair.partition(">")
        message = ChatMessage.of("user", f"text {id_}")
        nodes.append(Turn(ordinal, id_, "r", message, None, parent or None, AT))
    return nodes


def drawn(*pairs: str, head: str | None = None) -> list[str]:
    """The lines: marks and id, with * for the active node and ' for those beside the path."""
    return [
        f"{line.marks}{line.turn.id}{'*' if line.is_active else ''}{'' if line.is_on_path else chr(39)}"
        for line in tree_of(turns(*pairs), head)
    ]


def test_a_conversation_without_branches_is_a_list() -> None:
    """No marks; each node is on the path to the last one."""
    assert drawn(">a", "a>b", "b>c", head="c") == ["a", "b", "c*"]


def test_branches_stand_below_their_node_in_the_order_in_which_they_began() -> None:
    """Also one within another; what is behind the active node is not on its path."""
    pairs = (">a", "a>b", "b>c", "a>d", "d>e", "d>f", "a>g")

    assert drawn(*pairs, head="d") == [
        "a",
        "├─ b'",
        "│  c'",
        "├─ d*",
        "│  ├─ e'",
        "│  └─ f'",
        "└─ g'",
    ]


def test_several_first_nodes_are_branches() -> None:
    """So is one whose parent is gone."""
    assert drawn(">a", "gone>b", head="b") == ["├─ a'", "└─ b*"]


def test_a_long_conversation_is_drawn_without_recursion() -> None:
    """Of many thousand nodes."""
    pairs = [">0", *(f"{n}>{n + 1}" for n in range(20_000))]

    assert len(drawn(*pairs, head="20000")) == 20_001


def test_no_nodes_are_no_lines() -> None:
    """Of a session in which nothing was said."""
    assert drawn() == []


def test_a_node_without_text_shows_its_calls_and_results() -> None:
    """On one line, cut."""
    call = ContentBlock.model_validate(
        {"type": "tool_call", "id": "1", "name": "find", "arguments": {"q": "x" * 200}}
    )
    result = ContentBlock.model_validate(
        {"type": "tool_result", "id": "1", "name": "find", "text": "two\nlines"}
    )
    message = ChatMessage(role="assistant", content=[call, result])
    [line] = tree_of([Turn(0, "abcdefghij", "r", message, None, None, AT)], "abcdefghij")

    assert [*lines_of_blocks(message)][1] == "← find: two lines"
    assert node_text(line).startswith('* abcdefgh assistant: → find {"q": "xxx')
    assert len(node_text(line)) < 140
