"""Ready-made agents: classes that an author only configures, and tools of the runtime for their models.

A message enters by `run`, an answer leaves as the run's output. The verbs of `actors.runtime` are below;
sessions and workflows are above.
"""

from actors.agents.memory_tools import memory_tools
from actors.agents.react import ReActAgent

__all__ = ["ReActAgent", "memory_tools"]
