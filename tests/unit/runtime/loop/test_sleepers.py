"""The agents whose runs sleep, as a host remembers them."""

from __future__ import annotations

import random
import sys

from actors._runtime.loop.timers import Sleepers

MANY = 20_000


def test_it_is_a_mapping_that_forgets_what_it_returns() -> None:
    """As a dict, in random order of calls."""
    rng, model, sleepers = random.Random(5), dict[str, int](), Sleepers()
    for _ in range(5_000):
        agent, priority = f"desk/{rng.randrange(300)}", rng.randrange(-9, 9)
        match rng.randrange(4):
            case 0 | 1:
                model[agent] = priority
                sleepers.add(agent, priority)
            case 2:
                assert sleepers.pop(agent) == model.pop(agent, None)
            case _:
                some = {f"desk/{rng.randrange(300)}": priority for _ in range(rng.randrange(9))}
                model.update(some)
                sleepers.update(some)
        assert len(sleepers) == len(model)
    assert {agent: sleepers.pop(agent) for agent in list(model)} == model
    assert not sleepers


def test_an_agent_takes_12_bytes() -> None:
    """However long its name is. The arrays have a little room for the next ones."""
    sleepers = Sleepers()
    for number in range(MANY):
        sleepers.add(f"desk/of-a-flow-with-a-long-name:{number}", 5)

    arrays = (getattr(sleepers, name) for name in Sleepers.__slots__)
    assert sum(map(sys.getsizeof, arrays)) <= 14 * MANY
