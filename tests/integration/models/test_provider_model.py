"""Clients of providers over HTTP: what is sent, what comes back, and what failures become."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pydantic_ai import Agent, InstrumentationSettings

from actors import (
    ChatMessage,
    ContentBlock,
    GenerationOptions,
    LLMClient,
    LLMResponse,
    RetryAfter,
    Runtime,
    ToolSpec,
    Usage,
    agent,
)
from actors._kernel.agent.models import (
    Completion,
    ModelFacts,
    ModelRegistry,
    ReasoningDelta,
    TextDelta,
)
from actors.errors import ContractError, ModelError
from compose.models import RetryingModel, TryLimits, known_models, model
from tests.integration.models.provider import (
    CHAT_USAGE,
    DONE,
    Answer,
    Provider,
    anthropic,
    chat,
    chat_chunk,
    event,
    provider,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from actors import Message, RunContext

HI = [ChatMessage.of("user", "hi")]
CHAT, RESPONSES, CLAUDE = "openai-chat:gpt-4o", "openai:gpt-4o", "anthropic:claude-haiku-5-5"
SLOW = Answer(status=429, body={"error": {"message": "slow down"}}, headers={"retry-after": "0"})
THINKING = (
    {"type": "thinking", "thinking": "", "signature": ""},
    [
        {"type": "thinking_delta", "thinking": "secret thought"},
        {"type": "signature_delta", "signature": "SIG"},
    ],
)
TEXT = ({"type": "text", "text": ""}, [{"type": "text_delta", "text": "Hello"}])
CALL = (
    {"type": "tool_use", "id": "t1", "name": "book", "input": {}},
    [{"type": "input_json_delta", "partial_json": '{"day": 1}'}],
)

REFUSED = event("message_delta", delta={"stop_reason": "refusal"}, usage={"output_tokens": 3})


def client_of(served: Provider, name: str = CHAT, **options: Any) -> RetryingModel:
    """A client of a model that this provider has; one try, unless the test says otherwise."""
    address = served.url if name == CLAUDE else f"{served.url}/v1"
    options.setdefault("tries", TryLimits(count=1))
    return model(name, api_key="key-of-test", base_url=address, **options)


@pytest.fixture
async def served() -> AsyncIterator[Provider]:
    """A provider that answers as its script says."""
    async with provider() as serving:
        yield serving


async def failure(client: LLMClient) -> ModelError:
    """The error of one call."""
    with pytest.raises(ModelError) as exc_info:
        await client.generate(HI)
    return exc_info.value


@pytest.mark.item(340)
async def test_an_answer_is_streamed_with_its_usage(served: Provider) -> None:
    """Pieces, then the whole, with the cost of the price list."""
    answer = chat("Hel", "lo")
    served.script = [Answer([line.replace("gpt-test", "gpt-4o") for line in answer.events])]
    client = client_of(served)

    *pieces, last = [part async for part in client.generate_stream(HI)]

    assert isinstance(client, LLMClient)
    assert pieces == [TextDelta(text="Hel"), TextDelta(text="lo")]
    assert isinstance(last, Completion)
    assert (last.response.text, last.response.model) == ("Hello", "gpt-4o")
    assert last.response.stop_reason == "stop"
    usage = last.response.usage
    assert usage.model_copy(update={"cost_usd": None}) == Usage(
        input=20, cached=8, output=5, reasoning=2
    )
    assert usage.cost_usd is not None
    assert 0 < usage.cost_usd < 0.001
    await client.aclose()


@pytest.mark.item(340)
async def test_options_are_sent_in_the_providers_words(served: Provider) -> None:
    """Instructions, tools, the choice of one, limits, stops, a schema; and further settings as they are."""
    served.script = [chat("ok")]
    client = client_of(served, settings={"seed": 7, "temperature": 1.0})
    schema = {"title": "Day[int]", "type": "object", "properties": {"day": {"type": "string"}}}
    options = GenerationOptions(
        system_instructions="Be brief.",
        tools=(ToolSpec(name="book", description="Books."), ToolSpec(name="drop")),
        tool_choice="book",
        temperature=0.5,
        max_tokens=9,
        stop=("END",),
        response_format=schema,
        extra={"top_p": 0.25},
    )

    await client.generate(HI, options=options)

    [request] = served.requests
    assert request["messages"][0] == {"role": "system", "content": "Be brief."}
    assert [tool["function"]["name"] for tool in request["tools"]] == ["book", "drop"]
    assert request["tool_choice"]["function"] == {"name": "book"}
    assert (request["temperature"], request["top_p"], request["seed"]) == (0.5, 0.25, 7)
    assert (request["max_completion_tokens"], request["stop"]) == (9, ["END"])
    assert request["response_format"]["json_schema"]["name"] == "Day_int_"
    await client.aclose()


@pytest.mark.item(340)
@pytest.mark.parametrize("name", [CHAT, RESPONSES, CLAUDE])
async def test_a_try_is_one_request(served: Provider, name: str) -> None:
    """Retries of the SDKs are off: they would multiply ours, and hide them."""
    served.script = [SLOW]
    once, thrice = client_of(served, name), client_of(served, name, tries=TryLimits(count=3))

    with pytest.raises(RetryAfter):
        await once.generate(HI)
    assert len(served.requests) == 1
    with pytest.raises(RetryAfter):
        await thrice.generate(HI)
    assert len(served.requests) == 4
    await once.aclose()
    await thrice.aclose()


async def test_a_long_wait_that_the_provider_asks_for_is_the_runs(served: Provider) -> None:
    """Nobody holds a connection for minutes."""
    served.script = [Answer(status=429, body={}, headers={"retry-after": "300"})]
    client = client_of(served, tries=TryLimits())

    with pytest.raises(RetryAfter) as exc_info:
        await client.generate(HI)

    assert exc_info.value.delay_s == 300
    assert len(served.requests) == 1
    await client.aclose()


async def test_a_failure_that_passes_is_tried_again(served: Provider) -> None:
    """The answer is the one of the next try."""
    served.script = [SLOW, chat("fine")]
    client = client_of(served, tries=TryLimits(count=2))

    assert (await client.generate(HI)).text == "fine"
    await client.aclose()


async def test_the_sdk_makes_no_spans_of_its_own(served: Provider) -> None:
    """Even if a program has them turned on for all agents of that library."""
    spans = InMemorySpanExporter()
    tracers = TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(spans))
    Agent.instrument_all(InstrumentationSettings(tracer_provider=tracers))
    served.script = [chat("ok")]
    client = client_of(served)
    try:
        await client.generate(HI)
    finally:
        Agent.instrument_all(False)

    assert spans.get_finished_spans() == ()
    await client.aclose()


CONTEXT = {"error": {"message": "too long", "code": "context_length_exceeded"}}
QUOTA = {"error": {"message": "no money", "code": "insufficient_quota"}}


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (Answer(status=500, body={}), "overloaded"),
        (Answer(status=503, body={}), "overloaded"),
        (Answer(status=529, body={}), "overloaded"),
        (Answer(status=408, body={}), "timeout"),
        (Answer(status=409, body={}), "overloaded"),
        (Answer(status=425, body={}), "overloaded"),
        (Answer(status=402, body={}), "quota"),
        (Answer(status=400, body={"error": {"message": "odd"}}), "invalid"),
        (Answer(status=404, body={"error": {"message": "no model"}}), "invalid"),
        (Answer(status=400, body=CONTEXT), "context_too_long"),
        (Answer(status=401, body={}), "auth"),
        (Answer(status=403, body={}), "auth"),
        (Answer(status=429, body=QUOTA), "quota"),
        (Answer(status=429, body={}), "rate_limited"),
        (Answer([chat_chunk(finish="content_filter"), DONE]), "refused"),
    ],
    ids=lambda parameter: f"{parameter.status}" if isinstance(parameter, Answer) else parameter,
)
async def test_failures_have_kinds(served: Provider, answer: Answer, kind: str) -> None:
    """By the provider's words, and with the model's name."""
    served.script = [answer]
    client = client_of(served)

    error = await failure(client)

    assert error.kind == kind
    assert "gpt-4o" in error.problem
    assert "key-of-test" not in str(error)
    await client.aclose()


async def test_a_provider_that_is_not_there_is_a_failed_connection(served: Provider) -> None:
    """Port 1 of this machine listens to nobody."""
    served.url = "http://127.0.0.1:1"
    client = client_of(served)

    assert (await failure(client)).kind == "connection"
    await client.aclose()


async def test_a_provider_that_says_nothing_is_too_slow(served: Provider) -> None:
    """After the seconds that the author allows it."""
    served.script = [Answer(hold=True)]
    client = client_of(served, settings={"timeout": 0.05})

    assert (await failure(client)).kind == "timeout"
    await client.aclose()


@pytest.mark.parametrize(
    "answer",
    [
        Answer([chat_chunk("half")], cut=True),
        Answer([chat_chunk("half")]),
        Answer([chat_chunk("half"), chat_chunk(**CHAT_USAGE)]),
        Answer([chat_chunk("half"), "data: {no json\n\n"]),
        Answer(["data: [DONE]\n\n"]),
    ],
    ids=["cut", "ended", "usage", "garbled", "nothing"],
)
async def test_a_stream_that_breaks_off_is_no_answer(served: Provider, answer: Answer) -> None:
    """However it breaks off: the run asks again, and nothing of it is recorded."""
    served.script = [answer]
    client = client_of(served)

    assert (await failure(client)).kind == "connection"
    await client.aclose()


async def test_a_server_that_gives_no_reason_ends_its_answer_with_done(served: Provider) -> None:
    """That line is its own end, as a finish reason is."""
    served.script = [Answer([chat_chunk("whole"), DONE])]
    client = client_of(served)

    answer = await client.generate(HI)

    assert (answer.text, answer.stop_reason) == ("whole", "stop")
    await client.aclose()


async def test_every_part_of_an_answer_before_its_end_is_none(served: Provider) -> None:
    """At each event a proxy may close the stream; usage came with the first one."""
    events = anthropic(TEXT, CALL).events
    served.script = [Answer(events[:n]) for n in range(1, len(events) - 2)]
    client = client_of(served, CLAUDE)

    errors = [await failure(client) for _ in [*served.script]]

    assert {error.kind for error in errors} == {"connection"}
    await client.aclose()


@pytest.mark.parametrize(
    ("name", "answer", "reason"),
    [
        (CHAT, Answer([chat_chunk("I can"), chat_chunk(finish="content_filter"), DONE]), "filter"),
        (CHAT, Answer([chat_chunk(refusal="no, never"), chat_chunk(finish="stop"), DONE]), "never"),
        (CLAUDE, Answer([*anthropic(TEXT).events[:-2], REFUSED]), "filter"),
    ],
    ids=["filter", "words", "claude"],
)
async def test_a_refusal_with_text_is_a_refusal(
    served: Provider, name: str, answer: Answer, reason: str
) -> None:
    """What was said before it is no answer."""
    served.script = [answer]
    client = client_of(served, name)

    error = await failure(client)

    assert (error.kind, reason in error.problem) == ("refused", True)
    await client.aclose()


async def test_an_answer_that_a_limit_cut_off_says_so(served: Provider) -> None:
    """In the provider's words."""
    served.script = [Answer([chat_chunk("half"), chat_chunk(finish="length"), DONE])]
    client = client_of(served)

    answer = await client.generate(HI)

    assert (answer.text, answer.stop_reason, answer.reached_limit) == ("half", "length", True)
    await client.aclose()


async def test_an_answer_without_usage_gets_an_estimate(served: Provider) -> None:
    """So that budgets count it; nobody knows its cost."""
    served.script = [Answer([chat_chunk("a long enough answer"), chat_chunk(finish="stop"), DONE])]
    client = client_of(served)

    usage = (await client.generate(HI)).usage

    assert usage.input > 0
    assert usage.output > 0
    assert usage.cost_usd is None
    await client.aclose()


async def test_an_empty_answer_is_an_answer(served: Provider) -> None:
    """And may stand in a conversation."""
    served.script = [chat(), chat("again")]
    client = client_of(served)
    empty = await client.generate(HI)

    again = await client.generate([*HI, empty.message(), *HI])

    assert (empty.text, empty.content, empty.stop_reason) == ("", [], "stop")
    assert again.text == "again"
    await client.aclose()


def calls(*arguments: tuple[str, str]) -> Answer:
    """An answer that calls tools: ids, and arguments as the model wrote them."""
    tool_calls = [
        {"index": n, "id": id_, "type": "function", "function": {"name": "book", "arguments": text}}
        for n, (id_, text) in enumerate(arguments)
    ]
    return Answer(
        [
            chat_chunk(calls=tool_calls),
            chat_chunk(finish="tool_calls"),
            chat_chunk(**CHAT_USAGE),
            DONE,
        ]
    )


async def test_calls_that_a_model_writes_badly_are_kept(served: Provider) -> None:
    """Arguments that are no JSON, and an id twice; the next request has them again."""
    served.script = [calls(("c1", '{"day": 1}'), ("c1", "{no")), chat("sorry")]
    client = client_of(served)
    answer = await client.generate(HI)

    results = [
        ContentBlock.model_validate({"type": "tool_result", "id": call.id, "name": "book"})
        for call in answer.tool_calls
    ]
    tool_message = ChatMessage(role="tool", content=results)
    await client.generate([*HI, answer.message(), tool_message])

    assert [call.id for call in answer.tool_calls] == ["c1", "c1~2"]
    assert [call.arguments for call in answer.tool_calls] == [{"day": 1}, {}]
    assert (answer.content[1].model_extra or {})["invalid_arguments"] == "{no"
    sent_messages = served.requests[1]["messages"]
    assert [call["id"] for call in sent_messages[1]["tool_calls"]] == ["c1", "c1~2"]
    assert [message["tool_call_id"] for message in sent_messages[2:]] == ["c1", "c1~2"]
    await client.aclose()


async def test_odd_characters_pass_in_both_directions(served: Provider) -> None:
    """Half a surrogate pair, NUL, and a pair that two pieces share."""
    served.script = [chat("a\ud83d", "\ude00b\x00", "c\ud800")]
    client = client_of(served)
    odd = [ChatMessage.of("user", "x\ud800y\x00z")]

    *pieces, last = [part async for part in client.generate_stream(odd)]

    assert isinstance(last, Completion)
    assert last.response.text == "a\U0001f600b\ufffdc\ufffd"
    text = "".join(piece.text for piece in pieces if isinstance(piece, TextDelta))
    assert text == last.response.text
    assert "x" in json.dumps(served.requests[0]["messages"])
    await client.aclose()


async def test_ten_megabytes_pass_in_both_directions(served: Provider) -> None:
    """As one text."""
    large = "ten bytes " * 1_000_000
    served.script = [chat(*[large[: len(large) // 4]] * 4)]
    client = client_of(served)

    answer = await client.generate([ChatMessage.of("user", large)])

    assert answer.text == large
    assert served.requests[0]["messages"][0]["content"][0]["text"] == large
    await client.aclose()


async def test_a_cancelled_call_closes_the_connection(served: Provider) -> None:
    """The provider stops computing what nobody waits for."""
    served.script = [Answer([chat_chunk("half")], hold=True)]
    client = client_of(served)
    has_begun = asyncio.Event()

    async def ask() -> None:
        async for _ in client.generate_stream(HI):
            has_begun.set()

    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        asking = group.create_task(ask())
        await has_begun.wait()
        asking.cancel()
        await served.client_gone.wait()
    await client.aclose()


@pytest.mark.costly
@pytest.mark.item(340)
async def test_reasoning_goes_back_to_its_provider_with_its_signature(served: Provider) -> None:
    """Through a log; tokens read from the cache and written to it are counted."""
    served.script = [anthropic(THINKING, TEXT, CALL)]
    client = client_of(served, CLAUDE)
    *pieces, last = [part async for part in client.generate_stream(HI)]
    assert isinstance(last, Completion)
    recorded_response = LLMResponse.model_validate(last.response.model_dump(mode="json"))
    result = ContentBlock.model_validate({"type": "tool_result", "id": "t1", "name": "book"})

    await client.generate(
        [*HI, recorded_response.message(), ChatMessage(role="tool", content=[result])]
    )

    assert ReasoningDelta(text="secret thought") in pieces
    assert recorded_response.stop_reason == "end_turn"
    usage = recorded_response.usage
    assert (usage.input, usage.cached, usage.cache_written, usage.output) == (150, 100, 40, 30)
    [_, answer, _] = served.requests[1]["messages"]
    assert answer["content"][0] == {
        "type": "thinking",
        "thinking": "secret thought",
        "signature": "SIG",
    }
    await client.aclose()


@pytest.mark.costly
@pytest.mark.parametrize("name", [CHAT, RESPONSES])
async def test_reasoning_of_one_provider_never_reaches_another(served: Provider, name: str) -> None:
    """Not as text either; nor does reasoning without a proof of its origin reach its own."""
    served.script = [anthropic(THINKING, TEXT)]
    claude = client_of(served, CLAUDE)
    thought = (await claude.generate(HI)).message()
    unsigned = ChatMessage(
        role="assistant",
        content=[
            ContentBlock(type="reasoning", text="secret thought"),
            ContentBlock(type="text", text="Hello"),
        ],
    )
    served.requests.clear()

    other = client_of(served, name)
    for client, answer in ((other, thought), (other, unsigned), (claude, unsigned)):
        await asyncio.gather(client.generate([*HI, answer, *HI]), return_exceptions=True)

    assert len(served.requests) == 3
    for request in served.requests:
        assert "secret thought" not in json.dumps(request)
        assert "Hello" in json.dumps(request)
    await other.aclose()
    await claude.aclose()


@pytest.mark.costly
async def test_an_error_within_a_stream_has_a_kind(served: Provider) -> None:
    """As the same error before it."""
    start = anthropic().events[0]
    error = {"type": "overloaded_error", "message": "busy"}
    served.script = [Answer([start, event("error", error=error)])]
    client = client_of(served, CLAUDE)

    assert (await failure(client)).kind == "overloaded"
    await client.aclose()


@pytest.mark.item(340)
async def test_sizes_and_prices_can_be_registered(served: Provider) -> None:
    """They go before those that the SDK knows; unknown is None."""
    registry = ModelRegistry()
    registry.register("gpt-4o", ModelFacts(context_window=1_000, input_usd=1e6, output_usd=0))
    served.script = [chat("ok")]
    plain, own = client_of(served), client_of(served, registry=registry)
    unknown = client_of(served, "openai-chat:nobody-1")

    assert plain.context_window == known_models().context_window(CHAT) == 128_000
    assert (own.context_window, unknown.context_window) == (1_000, None)
    assert known_models().context_window("openai:nobody-1") is None
    assert (await own.generate(HI)).usage.cost_usd == 20
    for client in (plain, own, unknown):
        await client.aclose()


@pytest.mark.item(340)
async def test_tokens_are_counted_without_a_request(served: Provider) -> None:
    """By a tokenizer, if it is installed; long texts by their characters."""
    client = client_of(served)
    text = "The quick brown fox jumps over the lazy dog. "

    assert await client.count_tokens([ChatMessage.of("user", text)]) in {14, 15}
    assert await client.count_tokens([ChatMessage.of("user", text * 50_000)]) == 750_004
    assert served.requests == []


async def test_a_run_sleeps_and_records_what_comes(served: Provider) -> None:
    """The wait is the run's, and an odd answer is in the log as the agent saw it."""
    served.script = [SLOW, chat("a\x00", "\ud83d", "\ude00\ud800")]
    client = client_of(served)

    @agent("asker", model=client)
    async def asker(ctx: RunContext, inbox: list[Message]) -> str:
        assert inbox
        return (await ctx.llm("hi")).text

    async with Runtime() as runtime:
        await runtime.register(asker)
        run_id = await runtime.submit(asker.id, "go")
        assert await runtime.result(run_id) == "a\ufffd\U0001f600\ufffd"
        kinds = [str(entry.kind) async for entry in runtime.tail(run_id)]
    assert "run.attempt_failed" in kinds
    assert len(served.requests) == 2
    await client.aclose()


def test_names_that_lead_nowhere_are_refused() -> None:
    """With an example; nothing is imported for it."""
    for name in ("gpt-4o", ":gpt-4o", "openai:", ""):
        with pytest.raises(ContractError, match="give provider:model"):
            model(name)
    with pytest.raises(ContractError, match="in this process"):
        model("local", api_key="x")


async def test_the_error_of_an_unknown_provider_has_its_name() -> None:
    """At the first call, which imports the SDK."""
    with pytest.raises(ContractError, match=r"nobody:gpt-4o.*such as anthropic, openai"):
        await model("nobody:gpt-4o").generate(HI)


async def test_a_missing_key_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the variable that would have it."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)

    with pytest.raises(ModelError, match="set OPENAI_API_KEY, or give api_key=") as exc_info:
        await model("openai:gpt-4o").generate(HI)
    assert exc_info.value.kind == "auth"
