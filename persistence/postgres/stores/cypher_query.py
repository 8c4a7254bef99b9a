"""Check of a Cypher query before a server gets it: the query only reads, and its columns have names.

Apache AGE calls functions of its database by name, and a query may come from a model or a stranger. So only
known functions pass. The tokens are those of AGE. A text that AGE may read in another way is refused.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from actors.kernel.stores.errors import CypherError
from actors.kernel.text import check_text_of

ENTITY: Final = "Entity"
RELATIONSHIP: Final = "Relationship"
MAX_COLUMNS: Final = 100

_TOKEN: Final = re.compile(
    r"""(?P<space> [ \t\n\r\f\v]+ | //[^\n\r]* | /\*.*?\*/ )
      | (?P<text> '(?:[^'\\]|\\.)*' | "(?:[^"\\]|\\.)*" )
      | (?P<quoted> `(?:[^`]|``)+` )
      | (?P<parameter> \$[A-Za-z_][A-Za-z0-9_]* )
      | (?P<number> [0-9]+ )
      | (?P<name> [A-Za-z_\u0080-\U0010ffff][A-Za-z0-9_\u0080-\U0010ffff]* )
      | (?P<sign> [-+*%^=<>!|&?~.,:()\[\]{}] | /(?!\*) )""",
    re.VERBOSE | re.DOTALL,
)
_WRITING_WORDS: Final = "CALL CREATE DELETE DETACH LOAD MERGE REMOVE SET"
_WRITES: Final = frozenset(_WRITING_WORDS.split())
_WORDS_BEFORE_PARENTHESES: Final = """
AND BY CASE CONTAINS DISTINCT ELSE IN LIMIT MATCH NOT OR RETURN SKIP THEN UNWIND WHEN WHERE WITH XOR
"""
_BEFORE_PARENTHESIS: Final = frozenset(_WORDS_BEFORE_PARENTHESES.split())
_FUNCTION_NAMES: Final = """
abs acos asin atan atan2 avg ceil coalesce collect cos cot count degrees e end_id endnode exists exp floor
head id isempty keys label labels last left length log log10 ltrim max min nodes percentilecont
percentiledisc pi properties radians rand range relationships replace reverse right round rtrim sign sin
size split sqrt start_id startnode stdev stdevp substring sum tail tan timestamp toboolean tobooleanlist
tofloat tofloatlist tointeger tointegerlist tolower tostring tostringlist toupper trim type
"""
_FUNCTIONS: Final = frozenset(_FUNCTION_NAMES.split())
"""Functions that compute only with their arguments. Other functions of AGE take the name of a graph."""
_AFTER_COLUMNS: Final = frozenset(["LIMIT", "ORDER", "SKIP", "UNION"])


class _Token(NamedTuple):
    kind: str
    text: str
    start: int
    end: int

    def word(self) -> str:
        """Return a bare name in upper case; nothing for other tokens."""
        return self.text.upper() if self.kind == "name" else ""


@dataclass(frozen=True, slots=True)
class CypherQuery:
    """A query that only reads.

    Attributes:
        text: The query without its comments.
        columns: Names of the columns of its rows.
    """

    text: str
    columns: Sequence[str]


def read_query(query: str, given: Container[str] = ()) -> CypherQuery:
    """Return a query that a server may get.

    Args:
        query: Its text.
        given: Names of the parameters that come with it.

    Raises:
        InvalidTextError: It is no text, longer than 64 KiB, or has a NUL or half a surrogate pair.
        CypherError: It writes, calls an unknown function, lacks a parameter, or has no columns.
    """
    check_text_of("Cypher query", query)
    found = list(_tokens(query))
    text = "".join(" " if one.kind == "space" else one.text for one in found)
    tokens = [one for one in found if one.kind != "space"]
    for at, one in enumerate(tokens):
        if one.word() in _WRITES:
            remedy = "change the graph by the store's methods, and write a name in `backticks`"
            raise CypherError(f"{one.text}: a query only reads; {remedy}")
        if one.kind == "parameter" and one.text[1:] not in given:
            raise CypherError(f"parameter {one.text} is not given: pass it in `parameters`")
        if one.text == "(" and at:
            _check_call(tokens, at)
        if one.text in {"(", "["}:
            _check_label(tokens, at)
    return CypherQuery(text, _columns(query, tokens))


def _tokens(query: str) -> Iterator[_Token]:
    at, end = 0, len(query.rstrip(" \t\n\r\f\v").removesuffix(";"))
    while at < end:
        found = _TOKEN.match(query, at, end)
        if found is None or found.lastgroup is None:
            raise CypherError(f"character {at + 1} cannot be read: {query[at : at + 20]!r}")
        yield _Token(found.lastgroup, found.group(), at, found.end())
        at = found.end()


def _check_call(tokens: Sequence[_Token], at: int) -> None:
    """Refuse the call of a function that is not one of `_FUNCTIONS`."""
    callee = tokens[at - 1]
    if callee.kind not in {"name", "quoted", "parameter"}:
        return
    is_qualified = at > 1 and tokens[at - 2].text == "."
    if not is_qualified and callee.word() in _BEFORE_PARENTHESIS:
        return
    if is_qualified or callee.kind != "name" or callee.text.lower() not in _FUNCTIONS:
        raise CypherError(f"{callee.text}(…) is no function that a query may call")


def _check_label(tokens: Sequence[_Token], at: int) -> None:
    """Refuse a label that no row has. The server would only find nothing."""
    rest = tokens[at + 1 : at + 4]
    if rest and rest[0].kind in {"name", "quoted"}:
        rest = rest[1:]
    if not rest[1:] or rest[0].text != ":":
        return
    label, known = rest[1].text.strip("`"), ENTITY if tokens[at].text == "(" else RELATIONSHIP
    if label != known:
        pattern = "(n:{} {{type: '{}'}})" if known == ENTITY else "[r:{} {{type: '{}'}}]"
        raise CypherError(
            f"label {label}: types are properties here, write {pattern.format(known, label)}"
        )


def _columns(query: str, tokens: Sequence[_Token]) -> list[str]:
    names = [_name(query, item) for item in _items(tokens)]
    if "*" in names:
        raise CypherError("RETURN *: name the columns")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise CypherError(f"two columns have the name {twice[0]}: write AS after one of them")
    if len(names) > MAX_COLUMNS:
        raise CypherError(f"{len(names)} columns, more than {MAX_COLUMNS}: return a list or a map")
    return names


def _items(tokens: Sequence[_Token]) -> list[list[_Token]]:
    """Return what follows the first RETURN that is in no parentheses, apart by commas."""
    items: list[list[_Token]] = []
    depth = 0
    for one in tokens:
        depth += (one.text in {"(", "[", "{"}) - (one.text in {")", "]", "}"})
        if depth == 0 and one.word() == "RETURN":
            if items:
                break
            items.append([])
        elif items:
            if depth == 0 and one.word() in _AFTER_COLUMNS:
                break
            if depth == 0 and one.text == ",":
                items.append([])
            elif items[-1] or len(items) > 1 or one.word() != "DISTINCT":
                items[-1].append(one)
    if not items or not all(items):
        raise CypherError(
            "a query ends with RETURN and its columns, for example RETURN n.name AS name"
        )
    return items


def _name(query: str, item: Sequence[_Token]) -> str:
    *before, last = item
    if before[1:] and before[-1].word() == "AS":
        is_quoted = last.kind == "quoted"
        return last.text[1:-1].replace("``", "`") if is_quoted else last.text
    return query[item[0].start : last.end]
