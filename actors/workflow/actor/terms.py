"""The parts that the runs of an app share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from actors.workflow.handlers import EffectHandlers
from actors.workflow.machine.limits import RuntimeConfig
from actors.workflow.machine.policy import EffectPolicy
from actors.workflow.machine.spec import WorkflowSpec
from actors.workflow.memory.effects import MemoryEffects


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowTerms:
    """The parts that the runs of an app share.

    Attributes:
        specs: The graphs by name.
        handlers: The host's handlers.
        policy: How often effects are tried.
        config: Limits of new runs.
        artifacts: For nodes, as `ctx.artifacts`, and for memory.
        memory: The effects of memory.
    """

    specs: Mapping[str, WorkflowSpec]
    handlers: EffectHandlers
    policy: EffectPolicy
    memory: MemoryEffects
    config: RuntimeConfig = field(default_factory=RuntimeConfig)
    artifacts: Any = None
