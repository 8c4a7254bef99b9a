"""`callboard context`: show the window of a session that the runtime sends to a model."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import Parameter

from actors.context.compaction.steps import CompactionStep
from actors.errors import ContractError
from actors.kernel.agent.agent import Agent
from actors.kernel.agent.transcript import NO_CUT, Cut
from actors.kernel.runtime.ids import AgentId
from actors.kernel.stores.conversations import TranscriptStore
from actors.kernel.stores.run_store import RunStore
from actors.runtime.verbs.conversation.windows import WindowReport, window_report
from compose.commands.inspect.history import counted, no_sessions
from compose.commands.options import HERE, AgentArg, Target
from compose.commands.output import Exit, NoDataError, ago, picked, print_json
from compose.commands.terminal import print_facts, print_table, say
from compose.host.loader import find_served, serve_all
from compose.tools.history import SentWindow, last_window
from compose.tools.replay import Catalogue


async def context(
    agent: AgentArg,
    /,
    *,
    session: str | None = None,
    module_attr: Annotated[str | None, Parameter(name="--app")] = None,
    target: Target = HERE,
) -> int:
    """Show the window of a session: its parts with their tokens, and the turns that each strategy left out.

    With `--app` the agent's code makes the window now, from the stored turns, before a new turn. The command
    asks no model. A strategy that needs a model is shown as `would ask MODEL`, and does not change
    the window. Without `--app` the command shows the window of the session's last model call, as the
    log describes it.

    Examples:
    `callboard context helper/main`;
    `callboard context helper/main --app shop.agents:app`;
    `callboard context acme:helper/main --session support-7 --app shop.agents:app --json`

    Parameters
    ----------
    session
        The session, as `callboard history list` names it. Default with --app: the agent's own session.
        Default without --app: the session that was written last.
    module_attr
        MODULE:ATTR as of `callboard host`.
    """
    code = None if module_attr is None else await _agent(module_attr, agent)
    async with target.client() as runtime:
        if code is not None:
            report = await _made_now(code, runtime.store, session)
            _show_report(report, target)
            return Exit.OK
        name = session or await _newest(runtime.store.transcripts, agent)
        await counted(runtime.store.transcripts, agent, name)
        sent = await last_window(runtime.store, agent, name)
    if sent is None:
        remedy = "give --app MODULE:ATTR to make it from the stored turns"
        raise NoDataError(f"no log has a model call in session {name!r} of {agent}: {remedy}")
    _show_sent(sent, agent, target)
    return Exit.OK


async def _agent(module_attr: str, agent: AgentId) -> Agent:
    catalogue = Catalogue()
    await serve_all(catalogue, {module_attr: find_served(module_attr)})
    found = catalogue.agents.find(agent)
    if found is None:
        remedy = f"see `callboard describe {module_attr}`"
        raise ContractError(f"{module_attr} does not serve {agent}: {remedy}")
    return found


async def _made_now(code: Agent, store: RunStore, session: str | None) -> WindowReport:
    report = await window_report(code, store, session)
    if session is not None and not report.turns:
        if report.history == "StoreHistory":
            await counted(store.transcripts, code.id, session)
        remedy = "name another session; a history in memory exists only in its own process"
        raise NoDataError(f"{report.history} has no session {session!r} of {code.id}: {remedy}")
    return report


async def _newest(store: TranscriptStore, agent: AgentId) -> str:
    found = await store.sessions(agent, limit=1)
    if not found:
        raise no_sessions(agent)
    return found[0].name


def _show_report(report: WindowReport, target: Target) -> None:
    if target.json:
        print_json(_report_to_json(report))
        return
    budget = report.budget
    size = "" if report.context_size is None else f" (context of {report.context_size} tokens)"
    goal = "" if budget is None or budget.target == budget.tokens else f", then {budget.target}"
    print_facts(
        (
            ("agent", report.agent),
            ("session", report.session),
            ("model", None if report.model is None else report.model + size),
            ("history", f"{report.turns} turn(s) in {report.history}, {report.read} read"),
            ("cut", None if report.cut is None else _cut_text(report.cut)),
            ("budget", None if budget is None else f"{budget.tokens} tokens{goal}"),
        )
    )
    parts = [(part.name, part.count, part.tokens) for part in report.parts]
    rows = [*parts, ("in all", "", report.tokens)] if parts else []
    print_table(("part", "count", "tokens"), rows, empty="the window is empty")
    columns = ("strategy", "kept", "dropped", "changed", "added", "tokens", "")
    steps = [_step_row(step) for step in report.steps]
    print_table(columns, steps, empty="no strategy had to run: the turns fit")


def _cut_text(cut: Cut) -> str:
    place = "of shortened turns" if cut.upto == NO_CUT else f"behind turn {cut.upto}"
    return f"{place}, by {cut.strategy} in run {cut.run_id}, {ago(cut.at)} ago"


def _step_row(step: CompactionStep) -> tuple[object, ...]:
    tokens = f"{step.tokens_before} → {step.tokens_after}"
    asks = f"would ask {step.would_ask}" if step.would_ask is not None else ""
    return step.name, step.kept, step.dropped, step.changed, step.added, tokens, asks


def _report_to_json(report: WindowReport) -> dict[str, Any]:
    steps = "strategy=name kept dropped changed added tokens_before tokens_after would_ask"
    return {
        "made": "now",
        **picked(report, "agent session model context_size history turns read"),
        "cut": None if report.cut is None else picked(report.cut, "upto strategy run=run_id at"),
        "budget": None if report.budget is None else picked(report.budget, "tokens target"),
        "parts": [picked(part, "name count tokens") for part in report.parts],
        "tokens": report.tokens,
        "steps": [picked(step, steps) for step in report.steps],
    }


def _show_sent(sent: SentWindow, agent: AgentId, target: Target) -> None:
    receipt = sent.receipt
    if target.json:
        made = {"made": "sent", "agent": str(agent), "session": receipt["session"]}
        print_json({**made, **picked(sent, "run at model receipt")})
        return
    cut = receipt["cut"]
    print_facts(
        (
            ("agent", agent),
            ("session", receipt["session"]),
            ("model", sent.model),
            ("sent", f"in run {sent.run}, {ago(sent.at)} ago"),
            ("cut", None if cut == NO_CUT else f"behind turn {cut}"),
            ("turns", receipt["turns"]),
            ("tokens", f"{receipt['tokens']}, without instructions and tools"),
        )
    )
    names = ("strategy", "dropped", "changed", "added", "tokens")
    rows = [tuple(step[name] for name in names) for step in receipt["steps"]]
    print_table(names, rows, empty="no strategy changed it")
    say("--app MODULE:ATTR makes the window that would be sent now")
