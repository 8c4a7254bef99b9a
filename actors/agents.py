"""Ready-made agents and tools: classes that an author only configures.

An agent's `run` gets messages. The answer is the run's output. Sessions and workflows use these agents.
"""

from actors._agents.react import ReActAgent
from actors._agents.tools import TaskManagerTool, memory_tools

__all__ = ["ReActAgent", "TaskManagerTool", "memory_tools"]

__path__: list[str] = []  # modules of the release before were below this one
