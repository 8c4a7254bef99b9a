"""The streams' configurations as data."""

from __future__ import annotations

from typing import Any

import pytest

from broker._mail.streams import StreamPlan, ensure
from broker._nats_client import JetStreamOffError
from broker._wire.subjects import Subjects

PLAN = StreamPlan(subjects=Subjects("ns"), deployment="d1")
CLUSTER = StreamPlan(subjects=Subjects("ns"), deployment="d1", replicas=3)


def test_a_cluster_keeps_three_copies_and_waits_for_its_disks() -> None:
    """Only a single node may answer before its disk has the message: with R3 the copies hold it."""
    for config in (CLUSTER.mail("E"), CLUSTER.topic("E"), CLUSTER.edge("E"), CLUSTER.dead()):
        assert config["num_replicas"] == 3
        assert "persist_mode" not in config
    assert PLAN.mail("E")["persist_mode"] == PLAN.topic("E")["persist_mode"] == "async"
    assert not {"persist_mode"} & (PLAN.edge("E").keys() | PLAN.dead().keys())


def test_only_the_mailboxes_ask_for_consumers() -> None:
    """A number counts against the account whether it is used or not; other streams have a few readers."""
    assert PLAN.mail("E")["max_consumers"] == 6000
    for config in (PLAN.topic("E"), PLAN.edge("E"), PLAN.dead()):
        assert "max_consumers" not in config


def test_messages_are_stored_by_type_partition_tenant_and_key() -> None:
    """One transform for hosts and outsiders, and one for posts, all with the same partitions."""
    plan = StreamPlan(subjects=Subjects("ns", 4), deployment="d1")
    stored = "ns.mail.{{wildcard(2)}}.{{partition(4,1,2,3)}}.{{wildcard(1)}}.{{wildcard(3)}}"
    mail = plan.mail("ns_EDGE_1")

    assert mail["name"] == "ns_MAIL"
    assert mail["subjects"] == [
        *("ns.agent.v1.*.*.*.in", "ns.mail.*.*.*.*", "ns.mail.~topic.*.*.*.*")
    ]
    assert mail["subject_transform"] == {"src": "ns.agent.v1.*.*.*.in", "dest": stored}
    whole = {"name": "ns_EDGE_1", "external": None, "opt_start_seq": 1, "opt_start_time": None}
    assert mail["sources"] == [
        {
            **whole,
            "subject_transforms": [
                {"src": "ns.agent.v1.*.*.*.ext.*", "dest": stored},
                {"src": "ns.agent.v1.*.*.*.sig.*.*.*", "dest": stored},
            ],
        },
        {
            **whole,
            "subject_transforms": [
                {
                    "src": "ns.topic.v1.*.*.*.ext.*",
                    "dest": "ns.mail.~topic.{{partition(4,1,2,3)}}"
                    ".{{wildcard(1)}}.{{wildcard(2)}}.{{wildcard(3)}}",
                }
            ],
        },
    ]


@pytest.mark.parametrize("config", [PLAN.mail("E"), PLAN.topic("E"), PLAN.edge("E"), PLAN.dead()])
def test_no_stream_lets_a_publisher_steer_it(config: dict[str, object]) -> None:
    """Rollups, schedules and lifetimes by header would wipe or redirect others' messages."""
    for name in ("allow_rollup_hdrs", "allow_msg_schedules", "allow_msg_ttl"):
        assert config[name] is False
    assert config["metadata"] == {"deployment": "d1"}


class Cluster:
    """JetStream's answers of a cluster with all streams, of which some have no leader."""

    def __init__(self, *leaderless: str) -> None:
        edge = PLAN.edge("ns_EDGE_1")
        configs = (PLAN.mail(edge["name"]), PLAN.topic(edge["name"]), PLAN.dead(), edge)
        self.streams = {c["name"]: c for c in configs}
        self.leaderless = {f"STREAM.INFO.{name}" for name in leaderless}
        self.patient: list[str] = []
        """What was asked by who is in no hurry."""

    async def hurried(self, what: str, body: dict[str, Any]) -> dict[str, Any]:
        """Answer, where there is a leader."""
        if what in self.leaderless:
            raise JetStreamOffError("a server", what, "no answer", "Wait.")
        if what == "STREAM.NAMES":
            holders = [
                name
                for name, stream in self.streams.items()
                if body["subject"] in stream["subjects"]
            ]
            return {"streams": holders}
        config = self.streams.get(what.removeprefix("STREAM.INFO."))
        return {"config": config} if config else {"error": {"err_code": 10059}}

    async def api(self, what: str, body: dict[str, Any]) -> dict[str, Any]:
        """Answer as `hurried`."""
        self.patient.append(what)
        return await self.hurried(what, body)


async def test_a_reader_of_the_stream_mail_waits_for_no_other_streams_leader() -> None:
    """A cluster that lost a server has none for some seconds; without hurry it is waited for."""
    cluster = Cluster("ns_TOPIC", "ns_DEAD", "ns_EDGE_1")
    names = await ensure(cluster.api, PLAN.subjects, deployment="d1", hurried_api=cluster.hurried)

    assert (names.mail, names.edge) == ("ns_MAIL", "ns_EDGE_1")
    assert not cluster.leaderless & set(cluster.patient)
    with pytest.raises(JetStreamOffError):
        await ensure(cluster.api, PLAN.subjects, deployment="d1")


@pytest.mark.parametrize(("leaderless", "is_there"), [("ns_MAIL", True), ("ns_TOPIC", False)])
async def test_mails_leader_and_what_is_not_there_are_waited_for(
    leaderless: str, is_there: bool
) -> None:
    """A server that is slow to say that there is no such stream is asked again with patience."""
    cluster = Cluster(leaderless)
    if not is_there:
        del cluster.streams[leaderless]

    with pytest.raises(JetStreamOffError):
        await ensure(cluster.api, PLAN.subjects, deployment="d1", hurried_api=cluster.hurried)
    assert f"STREAM.INFO.{leaderless}" in cluster.patient
