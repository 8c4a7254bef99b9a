"""Each row of the checklist about graphs has a test on the actor driver, or means nothing there."""

from __future__ import annotations

import importlib
from typing import Final

import pytest

FLOWS: Final = "tests.behaviour.test_flows"
WAITS: Final = "tests.behaviour.test_flow_waits"
PARTS: Final = "tests.behaviour.test_flow_parts"
BUNDLES: Final = "tests.behaviour.test_flow_bundles"
RACES: Final = "tests.behaviour.test_flow_races"
DEATHS: Final = "tests.behaviour.test_flow_deaths"

_IMPORTS: Final = "what may be imported is checked by the contracts of imports, for both drivers"
_ROWS: Final = "records and runs are rows of the runtime: its stores have a suite of their own"
_HOST: Final = (
    "there is no such store: nodes have the host's artifacts, and the log has its own limits"
)
_WHOLE: Final = "the runtime does it for all runs: timers, answers and owners need nobody who polls"

TESTED: Final = {
    391: f"{DEATHS}:test_a_flow_survives_a_crash_at_each_write",
    392: f"{WAITS}:test_a_person_answers_once",
    393: f"{WAITS}:test_a_person_answers_once",
    396: f"{FLOWS}:test_a_bad_node_fails_its_run",
    397: f"{FLOWS}:test_nodes_have_the_artifacts_of_the_host",
    398: f"{FLOWS}:test_a_flow_goes_through_its_nodes",
    399: f"{FLOWS}:test_a_flow_goes_through_its_nodes",
    400: f"{FLOWS}:test_a_bad_node_fails_its_run",
    401: f"{FLOWS}:test_a_flow_goes_through_its_nodes",
    402: f"{FLOWS}:test_a_flow_goes_through_its_nodes",
    403: f"{FLOWS}:test_a_flow_goes_through_its_nodes",
    404: f"{FLOWS}:test_a_bad_handler_fails_the_run",
    405: f"{FLOWS}:test_a_cancelled_flow_run_has_ended",
    407: f"{WAITS}:test_a_person_answers_once",
    408: f"{FLOWS}:test_a_flow_goes_through_its_nodes",
    409: f"{FLOWS}:test_a_run_has_limits_namespaces_and_traces",
    410: f"{FLOWS}:test_a_flow_goes_through_its_nodes",
    411: f"{WAITS}:test_runs_of_other_apps_and_tenants_are_not_found",
    412: f"{WAITS}:test_a_person_answers_once",
    413: f"{WAITS}:test_a_person_answers_once",
    414: f"{RACES}:test_one_of_two_answers_to_a_wait_succeeds",
    415: f"{DEATHS}:test_a_flow_survives_a_crash_at_each_write",
    416: f"{WAITS}:test_a_deadline_ends_a_wait",
    417: f"{WAITS}:test_an_instant_is_waited_for_in_any_zone",
    418: f"{WAITS}:test_a_person_answers_once",
    419: f"{FLOWS}:test_effects_without_a_wait",
    420: f"{WAITS}:test_an_event_reaches_the_waits_in_its_scope",
    421: f"{PARTS}:test_a_parent_waits_while_its_child_does",
    427: f"{FLOWS}:test_effects_without_a_wait",
    429: f"{FLOWS}:test_a_flow_goes_through_its_nodes",
    430: f"{FLOWS}:test_effects_without_a_wait",
    437: f"{FLOWS}:test_a_failed_attempt_is_followed_by_another",
    438: f"{FLOWS}:test_without_retries_the_first_failure_is_final",
    439: f"{FLOWS}:test_a_node_that_requests_an_effect_again_executes_it_again",
    440: f"{FLOWS}:test_a_failed_attempt_is_followed_by_another",
    441: f"{FLOWS}:test_an_effect_in_doubt_is_decided_by_an_operator",
    446: f"{FLOWS}:test_a_tampered_record_is_found",
    447: f"{FLOWS}:test_a_tampered_record_is_found",
    452: f"{BUNDLES}:test_a_bundle_starts_a_new_run",
    454: f"{FLOWS}:test_flows_of_an_app_have_unique_names",
    455: f"{WAITS}:test_an_instant_is_waited_for_in_any_zone",
    457: f"{WAITS}:test_an_event_reaches_the_waits_in_its_scope",
    458: f"{RACES}:test_one_event_wakes_many_flows",
    459: f"{FLOWS}:test_a_flow_goes_through_its_nodes",
    460: f"{FLOWS}:test_a_run_has_limits_namespaces_and_traces",
    463: f"{BUNDLES}:test_a_bundle_has_the_whole_run",
    472: f"{FLOWS}:test_a_run_has_limits_namespaces_and_traces",
    473: f"{FLOWS}:test_a_run_has_limits_namespaces_and_traces",
    474: f"{FLOWS}:test_a_flow_goes_through_its_nodes",
    476: f"{FLOWS}:test_effects_without_a_wait",
    477: f"{FLOWS}:test_a_bad_handler_fails_the_run",
    480: f"{PARTS}:test_a_child_that_does_not_succeed_fails_its_parent",
}
MEANS_NOTHING: Final = {
    394: _IMPORTS,
    395: _IMPORTS,
    406: "values, which both drivers share; the tests of the embedded driver have them",
    442: _ROWS,
    443: _ROWS,
    444: _ROWS,
    445: "who watches a run reads its log with `Runtime.tail`",
    448: _HOST,
    449: "functions, which both drivers share",
    450: _HOST,
    451: _HOST,
    453: "what is wanted of a run is a signal of it: durable, once by its id, in order",
    456: _WHOLE,
    479: _IMPORTS,
}


def test_each_row_has_a_test_or_a_reason() -> None:
    """Rows 391 to 421, and those of the rest that are about running graphs."""
    due = {
        *range(391, 422),
        427,
        429,
        430,
        *range(437, 461),
        463,
        472,
        473,
        474,
        476,
        477,
        479,
        480,
    }
    assert TESTED.keys() | MEANS_NOTHING.keys() == due
    assert not TESTED.keys() & MEANS_NOTHING.keys()


@pytest.mark.parametrize(("row", "path"), TESTED.items())
def test_the_test_of_a_row_names_it(row: int, path: str) -> None:
    """It is there, and marked with the row."""
    module, _, name = path.partition(":")
    test_function = getattr(importlib.import_module(module), name)
    marked = {
        number for mark in test_function.pytestmark if mark.name == "item" for number in mark.args
    }
    assert row in marked
