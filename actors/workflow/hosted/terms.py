"""The parts that the runs of an app share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from actors.workflow.handlers import EffectHandlers
from actors.workflow.machine.spec import EffectPolicy, WorkflowSpec
from actors.workflow.machine.variables import RuntimeConfig
from actors.workflow.notes.effects import MemoryEffects


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowTerms:
    """The parts that the runs of an app share.

    Attributes:
        specs: The graphs by name.
        handlers: The host's handlers.
        policy: The policy that decides the number of attempts of effects.
        config: Limits of new runs.
        artifacts: The store of artifacts. Nodes read it as `ctx.artifacts`, and the memory effects use it.
        memory: The effects of memory.
        agents: Types of agents by the names of the graphs in whose place they are started.
    """

    specs: Mapping[str, WorkflowSpec]
    handlers: EffectHandlers
    policy: EffectPolicy
    memory: MemoryEffects
    config: RuntimeConfig = field(default_factory=RuntimeConfig)
    artifacts: Any = None
    agents: Mapping[str, str] = field(default_factory=dict)
