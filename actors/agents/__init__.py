"""Ready-made agents and tools: classes that an author only configures.

A message enters by `run`, an answer leaves as the run's output. The verbs of `actors.runtime` are below;
sessions and workflows are above.
"""

from actors.agents.memory_tools import memory_tools
from actors.agents.react import ReActAgent
from actors.agents.tasks import TaskManagerTool

__all__ = ["ReActAgent", "TaskManagerTool", "memory_tools"]
