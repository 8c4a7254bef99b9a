"""The configuration of nats-server that is shipped and printed, and what it must never allow."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from actors._kernel.runtime.ids import AgentId, RunId, TopicId
from actors.errors import ContractError, InvalidNameError
from broker._nats.permissions import Permissions, may_be_answered
from broker._wire.subjects import Subjects
from compose._assembly.nats_config import NatsAccounts, Publisher
from compose._cli import run
from tests.unit.documents import blocks

ACCOUNTS = Path(__file__).parents[2] / "compose" / "nats" / "accounts.conf"
NKEY = "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4"


def allows(patterns: tuple[str, ...], subject: str) -> bool:
    """Whether one of the patterns matches, as nats-server matches."""
    return any(_matches(pattern.split("."), subject.split(".")) for pattern in patterns)


def _matches(pattern: list[str], subject: list[str]) -> bool:
    if pattern[-1] == ">":
        head = pattern[:-1]
        return len(subject) > len(head) and _matches([*head, "x"], [*subject[: len(head)], "x"])
    return len(pattern) == len(subject) and all(
        pattern_token in {"*", token} for pattern_token, token in zip(pattern, subject, strict=True)
    )


def test_the_shipped_accounts_are_what_the_command_prints() -> None:
    """With the arguments that the file names."""
    head, _, rest = ACCOUNTS.read_text().partition("accounts {")

    assert "callboard nats-config --publisher crm\n" in head
    assert f"accounts {{{rest}" == NatsAccounts(publishers=(Publisher("crm"),)).text()


def test_the_documented_configuration_is_what_the_permissions_say() -> None:
    """Of the page for outside services: its publisher `crm`, its tenant `acme`."""
    [config] = blocks("docs/subjects.md", "hocon")
    grant, exports = Permissions().outsider("crm"), Permissions().exports("acme")
    subjects = {
        verb: set(re.findall(r'"([^"]+)"', match[1]))
        for verb in ("publish", "subscribe")
        if (match := re.search(rf"{verb}: \[(.*?)\]", config, re.DOTALL))
    }

    assert subjects == {"publish": set(grant.publish), "subscribe": set(grant.subscribe)}
    assert f"max: {grant.responses}," in config
    for export in exports:
        assert f'{{ {export.kind}: "{export.subject}", accounts: [ACME]' in config
        assert f'{{ {export.kind}: {{ account: RT, subject: "{export.subject}" }} }}' in config
    assert config.count("accounts: [ACME]") == len(exports)


@pytest.mark.parametrize("namespace", ["", "shop"])
def test_a_publisher_reaches_what_its_subjects_say(namespace: str) -> None:
    """The grammar's subjects of its name, tenant and types, and no others."""
    at = Subjects(namespace)
    mine, other = AgentId("desk", "a b", "acme"), AgentId("vault", "1", "acme")
    grant = Permissions(namespace).outsider("crm", "acme", types=["desk"])
    run_id, topic = RunId("r1"), TopicId("news", "eu", "acme")

    for subject in (
        at.external(mine, "crm"),
        at.ask(mine, "crm"),
        at.external_post(topic, "crm"),
        *(
            at.api("acme", "crm", verb)
            for verb in ("result", "status", "cancel", "signal", "events")
        ),
    ):
        assert allows(grant.publish, subject), subject
    for subject in (
        *(at.api("acme", "crm", verb) for verb in ("submit", "follow", "unfollow", "describe")),
        at.signal(mine, "crm", run_id, "go"),
        at.ask(mine, "crm", "tenant"),
        at.api("acme", "crm", "cancel", "tenant"),
        at.external(other, "crm"),
        at.ask(other, "crm"),
        at.external(mine, "shop"),
        at.inbox(mine),
        at.topic(topic),
        at.dead(mine),
        at.host("h"),
        at.live(mine, run_id),
        at.stored(mine),
        at.api("acme", "shop", "result"),
        at.external(AgentId("desk", "a b"), "crm"),
        "$JS.API.INFO",
    ):
        assert not allows(grant.publish, subject), subject
    assert grant.subscribe == ("_INBOX_crm.>",)


@pytest.mark.parametrize("namespace", ["", "shop"])
def test_who_sees_the_tenant_reaches_runs_that_others_started(namespace: str) -> None:
    """Its live events, signals and requests about it; with types only those of the types."""
    at, rules, run_id = Subjects(namespace), Permissions(namespace), RunId("r1")
    desk, vault = AgentId("desk", "1", "acme"), AgentId("vault", "1", "acme")
    all_, some, own = (
        rules.outsider("crm", "acme", sees="tenant"),
        rules.outsider("crm", "acme", types=["desk"], sees="tenant"),
        rules.outsider("crm", "acme"),
    )

    for agent, grants in ((desk, (all_, some)), (vault, (all_,))):
        for subject in (at.signal(agent, "crm", run_id, "go"), at.ask(agent, "crm", "tenant")):
            assert [grant for grant in (all_, some, own) if allows(grant.publish, subject)] == [
                *grants
            ]
        live_grants = [
            grant for grant in (all_, some, own) if allows(grant.subscribe, at.live(agent, run_id))
        ]
        assert live_grants == [*grants]
    cancel = at.api("acme", "crm", "cancel", "tenant")
    assert [grant for grant in (all_, some, own) if allows(grant.publish, cancel)] == [all_]
    assert allows(own.publish, at.api("acme", "crm", "submit"))


def test_the_grant_is_given_by_name() -> None:
    """To one publisher, not to the others; a name that nobody has is refused."""
    publishers = (Publisher("crm"), Publisher("billing", "acme"))
    users = NatsAccounts(publishers=publishers, sees_tenant=("acme.billing",)).users()
    wide = [
        user.name
        for user in users
        if user.grant and any(pattern.endswith(".tenant") for pattern in user.grant.publish)
    ]

    assert wide == ["acme.billing"]
    with pytest.raises(ContractError, match="no such --publisher"):
        NatsAccounts(publishers=publishers, sees_tenant=("shop",)).users()


def test_a_name_with_quotes_stays_a_name() -> None:
    """It ends neither the text nor the user."""
    name = 'x", permissions: { publish: ">" } } { user: "y'
    config = NatsAccounts(publishers=(Publisher(name),)).text()

    assert f'user: "{name.replace(chr(34), chr(92) + chr(34))}", password: $' in config


@pytest.mark.parametrize(
    "subject", ["_INBOX.x.1", "_INBOX_crm.x", "_R_.abc.1", "_GR_.aaa.bbb._INBOX.x"]
)
def test_answers_go_to_inboxes(subject: str) -> None:
    """Of clients, of other accounts, of other clusters."""
    assert may_be_answered(subject)


@pytest.mark.parametrize(
    "subject",
    [
        "",
        "crm.answers",
        "agent.v1.acme.desk.1.ext.shop",
        "agent.v1.default.desk.1.in",
        "mail.desk.0.default.1",
        "$JS.API.STREAM.DELETE.MAIL",
        "$JS.ACK.MAIL.x.1.1.1.1.1",
        "_INBOX_host.x.call.1",
        "_INBOX_admin.1",
        "_INBOX_tap.1",
        "_GR_.a.b.$JS.API.INFO",
        "_GR_.a.b._GR_.a.b._INBOX.x",
    ],
)
def test_answers_go_nowhere_else(subject: str) -> None:
    """Neither where the asker may not publish, nor where hosts and the admin are answered."""
    assert not may_be_answered(subject)


@pytest.mark.parametrize("namespace", ["", "shop"])
def test_a_tenants_account_gets_external_clients_subjects_only(namespace: str) -> None:
    """What only hosts may say is never exported."""
    at, mine = Subjects(namespace), AgentId("desk", "1", "acme")
    exports = tuple(export.subject for export in Permissions(namespace).exports("acme"))

    assert allows(exports, at.external(mine, "any"))
    assert allows(exports, at.ask(mine, "any"))
    for subject in (
        at.inbox(mine),
        at.stored(mine),
        at.dead(mine),
        at.host("h"),
        at.topic(TopicId("news", "eu", "acme")),
        at.external(AgentId("desk", "1"), "any"),
        at.ask(AgentId("desk", "1"), "any"),
        at.live(AgentId("desk", "1"), RunId("r")),
    ):
        assert not allows(exports, subject), subject


def test_no_grant_of_an_external_client_is_a_wildcard_at_a_place_of_trust() -> None:
    """Tenant and publisher are always written out."""
    for namespace in ("", "shop"):
        grant = Permissions(namespace).outsider("crm", "acme", sees="tenant")
        for pattern in grant.publish:
            tokens = pattern.removeprefix("shop.").split(".")
            assert tokens[2] == "acme", pattern
            assert "crm" in tokens, pattern
            assert ">" not in tokens, pattern


@pytest.mark.parametrize("name", ["host", "admin", "tap"])
def test_nobody_gets_the_reply_subjects_of_hosts(name: str) -> None:
    """Such a publisher is refused."""
    with pytest.raises(InvalidNameError, match="reply subjects"):
        Permissions().outsider(name)


@pytest.mark.parametrize(
    ("accounts", "words"),
    [
        (NatsAccounts(publishers=(Publisher("a b"), Publisher("a.b"))), "NATS_A_B_PASSWORD"),
        (NatsAccounts(tenants=("host",)), "both host"),
        (NatsAccounts(publishers=(Publisher("crm"), Publisher("crm", "acme"))), "each other's"),
        (NatsAccounts(tenants=("a.b", "a_b")), "NATS_A_B_PASSWORD"),
        (NatsAccounts(nkeys={"nobody": NKEY}), "no such user"),
        (NatsAccounts(nkeys={"host": "UA"}), "not a public key"),
    ],
)
def test_what_would_be_unsafe_is_refused(accounts: NatsAccounts, words: str) -> None:
    """Two users of one password, two publishers of one inbox, keys that are none."""
    with pytest.raises(ContractError, match=words):
        accounts.text()


def test_the_command_prints_configuration_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    """The JSON tells each user's variable, inbox prefix and permissions, for other templates."""
    arguments = ["nats-config", "--publisher", "crm", "--tenant", "acme", "--nkey", f"crm={NKEY}"]
    assert run(arguments) == 0
    text = capsys.readouterr().out
    assert run([*arguments, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    users = {user["user"]: user for user in data["users"]}

    assert data["config"] == text
    assert f"nkey: {NKEY}" in text
    assert list(users) == ["host", "admin", "crm", "acme"]
    assert users["crm"]["password_variable"] is None
    assert users["crm"]["inbox_prefix"] == "_INBOX_crm"
    assert users["acme"]["permissions"] is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--nkey", "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY"], "USER=PUBLIC"),
        (["--nkey", "host=SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY"], "a seed"),
        (["--publisher", ""], "publisher"),
        (["--tenant", "~"], "tenant"),
    ],
)
def test_wrong_arguments(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    """One line and exit code 2; a seed that was given by mistake is not repeated."""
    assert run(["nats-config", *arguments]) == 2
    output = capsys.readouterr().err

    assert words in output
    assert "SUACSSL3" not in output
    assert len(output.splitlines()) == 1
