"""The OpenAPI document, generated from the endpoints and their models."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any, Final, TypeAlias

from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode, models_json_schema

from compose.web.access import Access, access_of
from compose.web.endpoint import WebEndpoint
from compose.web.problems import MEDIA_TYPE, ProblemJson
from compose.web.streams import MEDIA_TYPE as STREAM

_REF: Final = "#/components/schemas/{model}"
_JSON: Final = "application/json"
_ACCESS: Final[Mapping[Access, str]] = {
    "public": "No login is needed.",
    "signed in": "Any principal with a login has access.",
}
_Refs: TypeAlias = "Mapping[Any, dict[str, Any]]"
"""References to schemas, by model and mode."""


def openapi_of(endpoints: Sequence[WebEndpoint]) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document."""
    wanted: dict[tuple[type[BaseModel], JsonSchemaMode], None] = {
        (ProblemJson, "serialization"): None
    }
    for one in endpoints:
        if one.body is not None:
            wanted[one.body, "validation"] = None
        if one.answer is not None:
            wanted[one.answer, "serialization"] = None
    refs, schemas = models_json_schema(list(wanted), ref_template=_REF)
    paths: dict[str, Any] = {}
    for one in endpoints:
        paths.setdefault(one.path, {})[one.method.lower()] = _operation(one, refs)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Callboard", "version": version("callboard")},
        "paths": paths,
        "components": {"schemas": schemas.get("$defs", {})},
    }


def _operation(one: WebEndpoint, refs: _Refs) -> dict[str, Any]:
    answer: dict[str, Any] = {"description": one.says}
    if one.answer is not None:
        answer["content"] = {one.media_type: {"schema": refs[one.answer, "serialization"]}}
        if one.streams:
            answer["content"][STREAM] = {"schema": {"type": "string"}}
    elif one.media_type != _JSON:
        answer["content"] = {one.media_type: {"schema": {"type": "string", "format": "binary"}}}
    problem = {
        "description": "The request is refused.",
        "content": {MEDIA_TYPE: {"schema": refs[ProblemJson, "serialization"]}},
    }
    statuses = {str(one.status)} | ({"200"} if one.method == "POST" and one.answer else set())
    names = re.findall(r"{(\w+)}", one.path)
    access = access_of(one.method, one.path)
    operation: dict[str, Any] = {
        "operationId": re.sub(r"\W+", "_", f"{one.method.lower()}{one.path}").strip("_"),
        "summary": one.says,
        "description": _ACCESS.get(access, f"Needs the scope {access}."),
        "parameters": [_path_parameter(name) for name in names] + _query_parameters(one.query),
        "responses": {**dict.fromkeys(sorted(statuses), answer), "default": problem},
    }
    if one.body is not None:
        required = any(field.is_required() for field in one.body.model_fields.values())
        schema = refs[one.body, "validation"]
        operation["requestBody"] = {"required": required, "content": {_JSON: {"schema": schema}}}
    elif one.takes is not None:
        schema = {"type": "string", "format": "binary"}
        operation["requestBody"] = {"required": True, "content": {one.takes: {"schema": schema}}}
    return operation


def _path_parameter(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "in": "path",
        "required": True,
        "schema": {"type": "string", "minLength": 1},
    }


def _query_parameters(query: type[BaseModel]) -> list[dict[str, Any]]:
    schema = query.model_json_schema(ref_template=_REF)
    required = schema.get("required", [])
    return [
        {"name": name, "in": "query", "required": name in required, "schema": part}
        for name, part in schema.get("properties", {}).items()
    ]
