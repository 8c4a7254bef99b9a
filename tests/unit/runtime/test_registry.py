"""What may be registered as an agent."""

from __future__ import annotations

from functools import partial, wraps
from typing import TYPE_CHECKING, Any, cast

import pytest

from actors import agent
from actors._kernel.runtime.ids import AgentId
from actors._runtime.registry import Registry
from actors.errors import RegistrationError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from actors._kernel.agent.agent import Agent


def plain(*_: object) -> int:
    """Nobody can wait for it."""
    return 1


def generator(*_: object) -> Iterator[int]:
    """It would begin nothing."""
    yield 1


async def async_generator(*_: object) -> AsyncIterator[int]:
    """Nor would this."""
    yield 1


async def coroutine(*_: object) -> int:
    """As it should be."""
    return 1


@wraps(coroutine)
def wrapped(*words: object) -> Any:
    """What a decorator that is no coroutine function makes of one."""
    return coroutine(*words)


class Callable_:  # noqa: N801 - it is what it is called
    """An object that can be called."""

    async def __call__(self, *_: object) -> int:
        """See `coroutine`."""
        return 1


def made_of(run: Any) -> Agent:
    """An object whose `run` this is, as a method."""
    class_ = type("Odd", (), {"id": AgentId("desk", "1"), "run": run})
    return cast("Agent", class_())


@pytest.mark.parametrize(
    ("run", "problem"),
    [
        (None, "not an agent"),
        (plain, "a plain `def`"),
        (partial(plain), "a plain `def`"),
        (generator, "a generator"),
        (async_generator, "a generator"),
    ],
)
@pytest.mark.parametrize("by", ["register", "factory", "decorator"])
def test_a_run_that_is_no_coroutine_function_is_refused(by: str, run: Any, problem: str) -> None:
    """Where somebody reads the error, not when the first message has come and is tried again."""
    registry, new_agent = Registry(), made_of(run)
    registry.add_type("other", lambda _: new_agent)
    ways: dict[str, Callable[[], object]] = {
        "register": lambda: registry.add(new_agent),
        "factory": lambda: registry.find(AgentId("other", "1")),
        "decorator": lambda: registry.add(agent("desk", "1")(run)),
    }

    with pytest.raises(RegistrationError, match=problem):
        ways[by]()


@pytest.mark.parametrize("is_partial", [False, True])
def test_a_class_that_makes_no_agents_is_refused_as_a_factory(*, is_partial: bool) -> None:
    """When it is registered: it says what `run` is. Of other factories that is known of what they make."""
    registry, class_ = Registry(), type(made_of(plain))

    with pytest.raises(RegistrationError, match=r"Odd is not an agent: .* a plain `def`"):
        registry.add_type("other", partial(class_) if is_partial else class_)
    assert not registry.is_served(AgentId("other", "1"))
    registry.add_type("other", type("Later", (), {"run": property(plain)}))


@pytest.mark.parametrize("run", [coroutine, wrapped, partial(coroutine), Callable_()])
def test_a_coroutine_function_is_known_in_every_guise(run: Callable[..., Any]) -> None:
    """Wrapped, with arguments, as an object: only what is certainly none is refused."""
    registry, new_agent = Registry(), made_of(run)
    registry.add(new_agent)

    assert registry.find(new_agent.id) is new_agent
