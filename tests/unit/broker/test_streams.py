"""The streams' configurations as data."""

from __future__ import annotations

import pytest

from broker.streams import StreamPlan
from broker.subjects import Subjects

PLAN = StreamPlan(subjects=Subjects("ns"), deployment="d1")
CLUSTER = StreamPlan(subjects=Subjects("ns"), deployment="d1", replicas=3)


def test_a_cluster_keeps_three_copies_and_waits_for_its_disks() -> None:
    """Only a single node may answer before its disk has the message: with R3 the copies hold it."""
    for one in (CLUSTER.mail("E"), CLUSTER.topic("E"), CLUSTER.edge("E"), CLUSTER.dead()):
        assert one["num_replicas"] == 3
        assert "persist_mode" not in one
    assert PLAN.mail("E")["persist_mode"] == PLAN.topic("E")["persist_mode"] == "async"
    assert not {"persist_mode"} & (PLAN.edge("E").keys() | PLAN.dead().keys())


def test_mail_is_stored_by_type_partition_tenant_and_key() -> None:
    """One transform for hosts and outsiders, and one for posts, all with the same partitions."""
    plan = StreamPlan(subjects=Subjects("ns", 4), deployment="d1")
    stored = "ns.mail.{{wildcard(2)}}.{{partition(4,1,2,3)}}.{{wildcard(1)}}.{{wildcard(3)}}"
    mail = plan.mail("ns_EDGE_1")

    assert mail["name"] == "ns_MAIL"
    assert mail["subjects"] == [
        *("ns.agent.v1.*.*.*.in", "ns.mail.*.*.*.*", "ns.mail.~topic.*.*.*.*"),
    ]
    assert mail["subject_transform"] == {"src": "ns.agent.v1.*.*.*.in", "dest": stored}
    assert mail["sources"] == [
        {
            "name": "ns_EDGE_1",
            "subject_transforms": [
                {"src": "ns.agent.v1.*.*.*.ext.*", "dest": stored},
                {"src": "ns.agent.v1.*.*.*.sig.*.*.*", "dest": stored},
            ],
        },
        {
            "name": "ns_EDGE_1",
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
    assert config["max_consumers"] == 6000
    assert config["metadata"] == {"deployment": "d1"}
