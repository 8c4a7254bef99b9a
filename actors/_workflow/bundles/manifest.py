"""The manifest of a bundle: its identity, its flows, and the flows that a run may begin with."""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from actors.errors import ContractError, Facts

_ID: Final = r"^[0-9A-Za-z][0-9A-Za-z._-]*$"
_VERSION: Final = r"^[0-9A-Za-z][0-9A-Za-z.+_-]*$"
_FLOW: Final = r"^[^:@/\\\s\x00-\x1f]+$"


class WorkflowBundleError(Facts, ContractError, ValueError):
    """A bundle was refused. Nothing of it was installed."""

    text = "{bundle}: {problem}. {remedy}"
    bundle: str
    problem: str
    remedy: str


class _ManifestPart(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="ignore")


class WorkflowBundleEntrypoint(_ManifestPart):
    """A flow that a run may begin with.

    Attributes:
        flow_id: The flow.
        name: A name for people to read.
        description: A description for people to read.
        interfaces: Names of the interfaces that the flow has.
    """

    flow_id: Annotated[str, Field(pattern=_FLOW, max_length=100)]
    name: str = ""
    description: str = ""
    interfaces: tuple[str, ...] = ()


class WorkflowBundleManifest(_ManifestPart):
    """The manifest, version 1.

    Attributes:
        bundle_format_version: ``1``.
        bundle_id: The name; letters, digits, ``.``, ``_`` and ``-``.
        bundle_version: The version.
        created_at: ISO 8601; empty if not given, so that equal contents are equal bytes.
        entrypoints: The flows that a run may begin with.
        default_entrypoint: The entry point that the bundle's name stands for.
        flows: The paths of all flows by id, below ``flows/``.
        metadata: JSON data of the bundle's author.
    """

    bundle_format_version: Literal["1"] = "1"
    bundle_id: Annotated[str, Field(pattern=_ID, max_length=100)]
    bundle_version: Annotated[str, Field(pattern=_VERSION, max_length=40)]
    created_at: str = ""
    entrypoints: Annotated[tuple[WorkflowBundleEntrypoint, ...], Field(min_length=1)]
    default_entrypoint: str | None = None
    flows: Annotated[dict[str, str], Field(min_length=1, max_length=1000)]
    metadata: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _fits_together(self) -> WorkflowBundleManifest:
        for flow_id, path in self.flows.items():
            if not re.fullmatch(_FLOW, flow_id):
                raise ValueError(f"flow {flow_id!r} has a name with colon, @, slash or spaces")
            if not path.startswith("flows/"):
                raise ValueError(f"flow {flow_id!r} is at {path!r}, not below flows/")
        entry_ids = [e.flow_id for e in self.entrypoints]
        for flow_id in [*entry_ids, *filter(None, [self.default_entrypoint])]:
            if flow_id not in self.flows:
                raise ValueError(f"entry point {flow_id!r} is none of its flows")
        if self.default_entrypoint is not None and self.default_entrypoint not in entry_ids:
            raise ValueError(
                f"default entry point {self.default_entrypoint!r} is not an entry point"
            )
        return self

    @property
    def ref(self) -> str:
        """The bundle's name in references: ``id@version``."""
        return f"{self.bundle_id}@{self.bundle_version}"

    @property
    def graph_names(self) -> dict[str, str]:
        """The graphs' names by flow.

        The default entry point is ``id@version``, the others are ``id@version.flow``.
        """
        first = self.entry.flow_id
        return {
            flow_id: self.ref if flow_id == first else f"{self.ref}.{flow_id}"
            for flow_id in self.flows
        }

    @property
    def entry(self) -> WorkflowBundleEntrypoint:
        """The default entry point, or the first one."""
        default_id = self.default_entrypoint
        return next((e for e in self.entrypoints if e.flow_id == default_id), self.entrypoints[0])


def read_manifest(data: Any, bundle: str) -> WorkflowBundleManifest:
    """Return JSON data as a checked manifest.

    Raises:
        WorkflowBundleError: The data is not a manifest.
    """
    try:
        manifest = WorkflowBundleManifest.model_validate(data)
        manifest.model_dump_json()
    except ValidationError as exc:
        problems = [
            f"{'/'.join(map(str, error['loc'])) or 'manifest'}: {error['msg'].removeprefix('Value error, ')}"
            for error in exc.errors(include_url=False, include_input=False)
        ]
        problem = f"its manifest.json is wrong: {'; '.join(problems[:10])}"
        raise WorkflowBundleError(bundle, problem, "Pack it again") from None
    except (ValueError, RecursionError) as exc:
        problem = f"its manifest.json is too deep, or has a text that is no Unicode: {exc}"
        raise WorkflowBundleError(bundle, problem, "Pack it again") from None
    return manifest
