"""Models, tools and knowledge of graphs on the embedded driver, over every store."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from actors._kernel.agent.tools import Tool
from actors._kernel.secrets import Secret
from actors._workflow.integrations import (
    RemoteAgent,
    RemoteModel,
    hybrid_llm,
    local_llm,
    remote_llm,
)
from actors.errors import ContractError, NotSerializableError
from actors.testing import ScriptedModel
from actors.workflow import (
    EffectOutcome,
    EffectType,
    RunStatus,
    WaitReason,
    WorkflowSpec,
    export_run_history_bundle,
)
from tests.conformance.workflow.integrated import CALLS, Till, noted, played
from tests.conformance.workflow.stores import effect_then, end_node, one_effect
from tests.harness.chat_server import chat_server, said, wanting

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conformance.workflow.stores import Stores

T = EffectType
KEY = "canary-7f3a9c-of-a-key"
ASKED = {
    "system_prompt": "Be short.",
    "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes?"}],
    "prompt": "2 + 2?",
    "tools": ["look", {"name": "other", "parameters": {"type": "object", "properties": {}}}],
    "provider": "acme",
    "model": "m1",
    "params": {"temperature": 0.5, "max_output_tokens": 9, "seed": 3},
}


@pytest.mark.item(431)
@pytest.mark.parametrize("mode", ["local", "remote", "hybrid"])
def test_the_three_modes_have_the_same_result(stores: Stores, mode: str) -> None:
    """The same payload gives the same shape of the result; the model gets the payload's request."""
    tools = Till().tools()
    with chat_server(said("4")) as server:
        remote = RemoteModel(server.url)
        model = ScriptedModel("4")
        integration = {
            "local": lambda: local_llm(model, tools),
            "remote": lambda: remote_llm(remote, tools),
            "hybrid": lambda: hybrid_llm(remote, tools),
        }[mode]()
        state = played(stores, integration, T.LLM_CALL, ASKED)

    assert state.status is RunStatus.COMPLETED, state.error
    answer = state.output["out"]
    assert (answer["content"], answer["tool_calls"], answer["provider"]) == ("4", [], "acme")
    assert {"input_tokens", "output_tokens", "total_tokens"} <= answer["usage"].keys()
    if mode == "local":
        (model_call,) = model.asked
        assert [(m.role, m.text) for m in model_call.messages] == [
            ("system", "Be short."),
            ("user", "hi"),
            ("assistant", "yes?"),
            ("user", "2 + 2?"),
        ]
        assert [t.name for t in model_call.options.tools] == ["look", "other"]
        assert (model_call.options.max_tokens, model_call.options.extra) == (9, {"seed": 3})
        return
    ((_, path, headers, body),) = server.asked
    assert (path, body["model"], body["provider"], body["seed"]) == (
        "/chat/completions",
        "m1",
        "acme",
        3,
    )
    assert [message["role"] for message in body["messages"]] == [
        "system",
        "user",
        "assistant",
        "user",
    ]
    assert [tool["function"]["name"] for tool in body["tools"]] == ["look", "other"]
    assert headers["idempotency-key"]
    assert (answer["usage"]["total_tokens"], answer["model"]) == (10, "served")
    assert state.vars["_limits"]["estimated_tokens_used"] == 10


def test_a_tool_has_its_name_whatever_its_provider_takes(stores: Stores) -> None:
    """The server is sent a name that the provider behind it takes. The result has the payload's name."""
    payload = {"prompt": "?", "tools": [{"name": "get.weather"}], "provider": "anthropic"}
    with chat_server(wanting(("c1", "get_weather", "{}"))) as server:
        state = played(stores, remote_llm(RemoteModel(server.url)), T.LLM_CALL, payload)

    (tool,) = server.asked[0][3]["tools"]
    assert tool["function"]["name"] == "get_weather"
    assert [call["name"] for call in state.output["out"]["tool_calls"]] == ["get.weather"]


@pytest.mark.item(431, 434)
def test_the_mode_decides_where_tools_execute(stores: Stores) -> None:
    """In this process with a local or a hybrid model; by a client with a remote one."""
    look, payload = [Till().tools()[1]], {"tool_calls": CALLS[1:]}
    with chat_server(said()) as server:
        remote = RemoteModel(server.url)
        for integration in (local_llm(ScriptedModel(), look), hybrid_llm(remote, look)):
            state = played(stores, integration, T.TOOL_CALLS, payload)
            (row,) = state.output["out"]["results"]
            assert (row["success"], row["output"]) == (True, {"paid": 0})
        state = played(stores, remote_llm(remote, look), T.TOOL_CALLS, payload)
    assert state.waiting is not None
    assert state.waiting.reason is WaitReason.JOB
    assert (state.waiting.details or {})["mode"] == "passthrough"


@pytest.mark.item(431)
def test_models_are_chosen_by_name(stores: Stores) -> None:
    """By provider and model, then by one of them; the error for an unknown name has the name."""
    models = {"a:m": ScriptedModel("both"), "m": ScriptedModel("model"), "b": ScriptedModel("b")}
    for provider, model, expected in (("a", "m", "both"), ("x", "m", "model"), ("b", "y", "b")):
        payload = {"prompt": "?", "provider": provider, "model": model}
        state = played(stores, local_llm(models), T.LLM_CALL, payload)
        assert state.output["out"]["content"] == expected
    state = played(stores, local_llm(models), T.LLM_CALL, {"prompt": "?", "model": "zz"})
    assert "there is no model 'zz'" in (state.error or "")


def everything_of(stores: Stores, run_id: str, folder: Any) -> str:
    """Return all stored data of a run: stores, traces, an export, and every file of the folder."""
    rt = stores.runtime()
    parts = [rt.get_ledger(run_id), rt.get_state(run_id).vars, rt.get_node_traces(run_id)]
    parts.append(
        export_run_history_bundle(
            run_id=run_id,
            run_store=stores.runs,
            ledger_store=stores.ledger,
            artifact_store=stores.artifacts,
        )
    )
    files = [
        file.read_bytes().decode(errors="replace") for file in folder.rglob("*") if file.is_file()
    ]
    return json.dumps(parts, default=str) + "".join(files)


@pytest.mark.item(433)
@pytest.mark.parametrize(
    "answer",
    [
        said("done"),
        said(f"you sent {KEY}-SERVER"),
        (401, f"bad key {KEY}-ACME"),
        (200, f"<{KEY}-ACME>"),
    ],
    ids=["done", "repeated", "refused", "no json"],
)
def test_keys_are_in_headers_only(  # noqa: PLR0917 - fixtures
    stores: Stores,
    tmp_path: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    answer: Any,
) -> None:
    """Only the server gets them: no store, trace, log or export has them, also if the server repeats them."""
    for name in ("SERVER", "ACME"):
        monkeypatch.setenv(f"CALLBOARD_SECRET_{name}", f"{KEY}-{name}")
    spec = one_effect(T.LLM_CALL, {"prompt": "?", "provider": "acme"})
    with chat_server(answer) as server:
        remote = RemoteModel(
            server.url, api_key=Secret("SERVER"), provider_keys={"acme": Secret("ACME")}
        )
        integration = noted(remote_llm(remote))
        rt = stores.runtime(effect_handlers=integration.blocking_handlers)
        run_id = rt.start(spec)
        state = rt.tick(spec, run_id)

    _, _, headers, body = server.asked[0]
    assert headers["authorization"] == f"Bearer {KEY}-SERVER"
    assert headers["x-provider-api-key"] == f"{KEY}-ACME"
    text = everything_of(stores, run_id, tmp_path)
    assert KEY not in json.dumps(body)
    for name in ("SERVER", "ACME"):
        assert f"{KEY}-{name}" not in text + caplog.text + repr(state) + repr(vars(remote))
    assert run_id in text


@pytest.mark.item(433)
def test_a_repeated_key_is_replaced_by_its_name(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In answers and in errors."""
    monkeypatch.setenv("CALLBOARD_SECRET_SERVER", KEY)
    with chat_server(said(f"you sent {KEY}"), (401, f"bad key {KEY}")) as server:
        integration = remote_llm(RemoteModel(server.url, api_key=Secret("SERVER")))
        state = played(stores, integration, T.LLM_CALL, {"prompt": "?"})
        refused = played(stores, integration, T.LLM_CALL, {"prompt": "?"})
    assert state.output["out"]["content"] == "you sent [secret SERVER]"
    assert "status 401: bad key [secret SERVER]" in (refused.error or "")


@pytest.mark.item(433)
def test_keys_come_from_the_folder_of_the_host(
    stores: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are read for each request, so that they can be replaced."""
    monkeypatch.setenv("CALLBOARD_SECRETS_DIR", str(tmp_path))
    with chat_server(said()) as server:
        integration = remote_llm(RemoteModel(server.url, api_key=Secret("SERVER")))
        for key in ("first", "second"):
            (tmp_path / "SERVER").write_text(f"{key}\n", encoding="utf-8")
            played(stores, integration, T.LLM_CALL, {"prompt": "?"})
    sent = [http_request[2]["authorization"] for http_request in server.asked]
    assert sent == ["Bearer first", "Bearer second"]


@pytest.mark.item(433)
def test_a_missing_secret_is_named(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is sent.

    A secret that is invalid as a header is named, too; keys in a payload are refused.
    """
    with chat_server(said()) as server:
        integration = remote_llm(RemoteModel(server.url, api_key=Secret("NOWHERE")))
        state = played(stores, integration, T.LLM_CALL, {"prompt": "?"})
        assert "secret NOWHERE is not known" in (state.error or "")
        monkeypatch.setenv("CALLBOARD_SECRET_NOWHERE", f"{KEY}\nx")
        state = played(stores, integration, T.LLM_CALL, {"prompt": "?"})
        assert "secret NOWHERE is no value of a header" in (state.error or "")
        assert KEY not in (state.error or "")
        state = played(stores, integration, T.LLM_CALL, {"prompt": "?", "params": {"api_key": KEY}})
        assert "llm_call: api_key: keys are no part of a payload" in (state.error or "")
        assert server.asked == []


@pytest.mark.item(431)
def test_an_invalid_model_answer_is_a_result(stores: Stores) -> None:
    """Unknown tools, 200 calls, equal ids, arguments and data that are no JSON: the run continues."""
    many = [(f"c{n}", "look", "{}") for n in range(200)]
    long = "no json\0at all\ud800" + "x" * 50_000
    deep = '{"a":' * 120 + "1" + "}" * 120
    odd = [("x", "nothing", "{}"), ("x", "look", "{oops"), ("", "look", "[1]"), *many]
    odd += [("n", "look", '{"a": NaN}'), ("d", "look", deep), ("z", "a\0b", '{"a": "\\ud800"}')]
    with chat_server(wanting(*odd), said(long), said("NaN")) as server:
        till, with_schema = Till(), {"prompt": "?", "response_schema": {"type": "object"}}
        integration = hybrid_llm(RemoteModel(server.url), till.tools())
        nodes = {
            "work": effect_then(T.LLM_CALL, {"prompt": "?"}, key="asked", after="call"),
            "call": lambda run, ctx: effect_then(
                T.TOOL_CALLS, {"tool_calls": run.vars["asked"]["tool_calls"]}, key="got", after="as"
            )(run, ctx),
            "as": effect_then(T.LLM_CALL, with_schema, key="data", after="again"),
            "again": effect_then(T.LLM_CALL, with_schema, key="nan"),
            "end": end_node,
        }
        spec = WorkflowSpec("graph", "work", nodes)
        rt = stores.runtime(effect_handlers=noted(integration).blocking_handlers)
        state = rt.tick(spec, rt.start(spec))

    assert state.status is RunStatus.COMPLETED, state.error
    rows = state.output["got"]["results"]
    assert len(rows) == len({row["call_id"] for row in rows}) == 206
    assert [row["success"] for row in rows] == [False] * 3 + [True] * 200 + [False] * 3
    assert rows[0]["error"] == "there is no tool 'nothing'. There are: look, pay"
    assert "no JSON object" in rows[1]["error"]
    assert "list, not an object" in rows[2]["error"]
    assert state.output["data"]["data"] is None
    assert state.output["data"]["content"] == "no json\\x00at all\\ud800" + "x" * 50_000
    assert "no JSON" in state.output["data"]["data_error"]
    assert "cannot be kept" in state.output["nan"]["data_error"]
    assert ["cannot be kept" in row["error"] for row in rows[-3:]] == [True] * 3


@pytest.mark.item(431)
@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ({"choices": []}, "no choices[0].message"),
        ([1], "no choices[0].message"),
        ((503, "busy"), "status 503: busy"),
        ((302, ""), "status 302"),
        ((200, "<html>"), "the response is no JSON"),
    ],
)
def test_a_server_that_gives_no_answer_fails_the_step(
    stores: Stores, answer: Any, problem: str
) -> None:
    """The error has name and address; the runtime does not crash."""
    with chat_server(answer) as server:
        state = played(stores, remote_llm(RemoteModel(server.url)), T.LLM_CALL, {"prompt": "?"})
    assert state.status is RunStatus.FAILED
    assert problem in (state.error or "")


CACHE = ("capabilities", "set", "clear")


@pytest.mark.item(432, 433)
async def test_a_prompt_cache_is_controlled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The request reaches the server, with the provider's key in a header, and its answer is returned."""
    monkeypatch.setenv("CALLBOARD_SECRET_ACME", KEY)
    with chat_server() as server:
        for what in CACHE:
            server.answers[f"/prompt_cache/{what}"] = [(200, {"did": what})]
        remote = RemoteModel(server.url, model="m", provider_keys={"acme": Secret("ACME")})
        cache = remote_llm(remote).prompt_cache(provider="acme")
        assert await cache.capabilities() == {"supported": True, "did": "capabilities"}
        assert await cache.set("k", ttl_s=60) == {"did": "set"}
        assert await cache.clear("k") == {"did": "clear"}
    assert [(method, path) for method, path, _, _ in server.asked] == [
        ("GET", "/prompt_cache/capabilities?model=m&provider=acme"),
        ("POST", "/prompt_cache/set"),
        ("POST", "/prompt_cache/clear"),
    ]
    same = {"model": "m", "provider": "acme", "key": "k"}
    assert [body for _, _, _, body in server.asked] == [None, same | {"ttl_s": 60}, same]
    assert [http_request[2]["x-provider-api-key"] for http_request in server.asked] == [KEY] * 3


@pytest.mark.item(432)
async def test_a_model_without_such_control_refuses(stores: Stores) -> None:
    """The error names the model; a call of it works."""
    with chat_server(said()) as server:
        for integration in (local_llm(ScriptedModel("4")), remote_llm(RemoteModel(server.url))):
            cache = integration.prompt_cache()
            assert await cache.capabilities() == {"supported": False}
            for refused in (cache.set("k"), cache.clear()):
                with pytest.raises(ContractError, match="has no control of its prompt cache"):
                    await refused
            with pytest.raises(ContractError, match="give the key"):
                await cache.set("")
            state = played(stores, integration, T.LLM_CALL, {"prompt": "?"})
            assert state.status is RunStatus.COMPLETED


@pytest.mark.item(431)
def test_the_embedded_driver_asks_no_agent(stores: Stores) -> None:
    """The run fails by name, for models and for tools; a time that is none is refused at once."""
    for kind, payload in ((T.LLM_CALL, {"prompt": "?"}), (T.TOOL_CALLS, {"tool_calls": CALLS})):
        state = played(stores, remote_llm(RemoteAgent("desk")), kind, payload)
        assert f"{kind.value}: only runs on hosts (Flows) ask agents" in (state.error or "")
    for timeout_s in (0, -1, float("inf"), float("nan")):
        with pytest.raises(ContractError, match="no time in seconds"):
            RemoteAgent("desk", timeout_s=timeout_s)


@pytest.mark.parametrize(
    ("odd", "expected"),
    [("a\x00b", "a\ufffdb"), ("\ud800", "\ufffd"), ({"a\x00": [1]}, {"a\ufffd": [1]})],
)
def test_a_tools_odd_text_is_replaced(stores: Stores, odd: Any, expected: Any) -> None:
    """The call is successful: the tool did what it was called for. A client's such result is refused."""

    async def look() -> Any:
        return odd

    call = [{"call_id": "c1", "name": "look", "arguments": {}}]
    integration = local_llm(ScriptedModel(), [Tool("look", "Looks.", look)])
    state = played(stores, integration, T.TOOL_CALLS, {"tool_calls": call})
    (row,) = state.output["out"]["results"]
    assert (row["success"], row["output"]) == (True, expected)

    batch = {"tool_calls": call, "mode": "passthrough"}
    spec = one_effect(T.TOOL_CALLS, batch)
    rt = stores.runtime(effect_handlers=noted(integration).blocking_handlers)
    state = rt.tick(spec, rt.start(spec))
    wait = state.waiting
    assert wait is not None
    for output in (odd, "again"):
        with suppress(NotSerializableError):
            results = {"results": [{"call_id": "c1", "output": output}]}
            state = rt.resume(spec, state.run_id, wait.wait_key, results)
    assert state.output["out"]["results"][0]["output"] == "again"


@pytest.mark.parametrize("odd", ["a\x00b", "\ud800", float("nan"), {"a\x00": 1}, b"x"])
def test_an_output_that_cannot_be_kept_is_an_unsuccessful_call(stores: Stores, odd: Any) -> None:
    """Also of a host's own handler. The other calls keep their results, and the run continues."""
    rows = [{"call_id": "c1", "name": "a", "success": True, "output": odd, "error": None}]
    rows += [{"call_id": "c2", "name": "b", "success": True, "output": 7, "error": None}]
    spec = one_effect(EffectType.TOOL_CALLS, {"tool_calls": []})
    own = {EffectType.TOOL_CALLS: lambda _run, _effect: EffectOutcome.completed({"results": rows})}
    rt = stores.runtime(spec, effect_handlers=own)

    state = rt.tick(spec, rt.start(spec))

    bad, good = state.output["out"]["results"]
    assert (bad["call_id"], bad["success"], bad["output"]) == ("c1", False, None)
    assert "cannot be kept" in bad["error"]
    assert good["output"] == 7
