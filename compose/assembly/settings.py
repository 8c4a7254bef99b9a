"""Settings from environment variables `CALLBOARD_…`; each is also an option of the CLI."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Literal, Self

from pydantic import AliasChoices, Field, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from actors.errors import ContractError
from actors.kernel.hidden import DEFAULT_NAMES

NATS_LOGIN: Final = (
    "nats_credentials",
    "nats_nkey_seed_file",
    "nats_tls_ca",
    "nats_tls_cert",
    "nats_tls_key",
)
"""The settings that say how to log in to NATS, beside its URL."""


class Settings(BaseSettings):
    """Settings of a host or a client. Durations are seconds.

    Attributes:
        postgres_url: ``postgresql://user:password@host:port/database``; `CALLBOARD_POSTGRES_URL`.
        nats_url: ``nats://user:password@host:port``, several separated by commas; left out,
            messages between hosts go through PostgreSQL; `CALLBOARD_NATS_URL`.
        nats_credentials: Path of a credentials file (``.creds``) to log in to NATS with, instead of
            user and password in the URL; `CALLBOARD_NATS_CREDENTIALS`.
        nats_nkey_seed_file: Path of a file with the nkey seed of the NATS user (``SU…``), instead of
            credentials; `CALLBOARD_NATS_NKEY_SEED_FILE`.
        nats_tls_ca: Path of the CA that signed the NATS server's certificate; set, the connection has
            to be encrypted. The machine's CAs when only the URL says ``tls://``;
            `CALLBOARD_NATS_TLS_CA`.
        nats_tls_cert: Path of the certificate that this process shows NATS; `CALLBOARD_NATS_TLS_CERT`.
        nats_tls_key: Path of that certificate's key; `CALLBOARD_NATS_TLS_KEY`.
        nats_replicas: Copies of each stream: 1, or 3 on a cluster; `CALLBOARD_NATS_REPLICAS`.
        runtime_backend: Where task boards of this process are kept while a runtime is open, see
            `GlobalTaskStore`: ``memory``, or ``postgres`` for the runtime's own database;
            `RUNTIME_BACKEND`.
        secrets_dir: Folder with one file per secret, named like it; left out, secrets come from
            variables `CALLBOARD_SECRET_<NAME>`; `CALLBOARD_SECRETS_DIR`.
        artifacts: Where the bytes of new artifacts are kept: ``s3://BUCKET/PREFIX?endpoint=https://HOST``, or
            the absolute path of a folder that all hosts share; left out: in Postgres. The same for hosts and
            commands; `CALLBOARD_ARTIFACTS`.
        redis_url: ``redis://:password@host:port/0``; may be left out; `CALLBOARD_REDIS_URL`.
        data_dir: Folder of embedded servers, used when there is no URL; `CALLBOARD_DATA_DIR`.
        db_schema: Where the tables are; `CALLBOARD_SCHEMA`.
        namespace: Goes before every stream and subject, so that deployments can share a NATS: up to
            32 of a-z, 0-9, `_` and `-`; `CALLBOARD_NAMESPACE`.
        local_delivery: Whether messages to an agent of the same host may skip the broker. The order and
            the promises are the same; `CALLBOARD_LOCAL_DELIVERY`.
        gateway: Whether this host answers outside services (docs/subjects.md, "Asking").
        lease_s: How long a host that fell silent keeps its agents; `CALLBOARD_LEASE_S`.
        heartbeat_s: How often a host renews its lease; a third of the lease when left out.
        blocked_s: How long code may block the event loop before its agent is given to another host;
            other agents of the host go after `lease_s`. The second time the run is parked.
        suspend_after: How long a waiting run stays in memory; 0 = not at all.
        capacity: How many runs execute at once; twice as many may wait in memory.
        drain_s: How long a host that stops lets running code end.
        start_wait_s: How long to wait for a server that is not there; left out: for ever.
        outage_s: How long calls wait for a server that went away.
        retain_days: Ended runs and dead letters are kept for so many days (tombstones and dead letters for 8
            at least); ``forever`` (None here): all is kept; `CALLBOARD_RETAIN_DAYS`.
        otlp_endpoint: ``http://HOST:4318`` of a collector that gets traces; left out: there are none;
            `CALLBOARD_OTLP_ENDPOINT`, else `OTEL_EXPORTER_OTLP_ENDPOINT`.
        trace_ratio: Which part of the conversations that begin here is traced, 0 to 1. The same on all
            hosts; `CALLBOARD_TRACE_RATIO`.
        trace_content: Whether traces show what is said: prompts, answers, arguments, messages of
            errors; `CALLBOARD_TRACE_CONTENT`.
        trace_redact: What they hide then, and events of sessions always: values whose key contains one of
            these names, separated by commas; `CALLBOARD_TRACE_REDACT`.
        jwt_jwks: File or URL of the public keys that sign JSON web tokens, for `callboard serve --auth jwt`;
            `CALLBOARD_JWT_JWKS`.
        jwt_issuer: Their claim ``iss``; left out: it says nothing; `CALLBOARD_JWT_ISSUER`.
        jwt_audience: One of their claim ``aud``; left out: tokens that have one are refused;
            `CALLBOARD_JWT_AUDIENCE`.
        jwt_tenant_claim: The claim with the tenant; empty: all are of the default one;
            `CALLBOARD_JWT_TENANT_CLAIM`.
        jwt_principal_claim: The claim with the principal; `CALLBOARD_JWT_PRINCIPAL_CLAIM`.
        jwt_scopes_claim: The claim with the scopes; `CALLBOARD_JWT_SCOPES_CLAIM`.
        jwt_leeway_s: So much clocks may differ; `CALLBOARD_JWT_LEEWAY_S`.
        http: ``HOST:PORT`` where a host answers ``/healthz``, ``/readyz`` and ``/metrics``; port 0 is
            a free one; left out: nowhere; `CALLBOARD_HTTP`.
    """

    model_config = SettingsConfigDict(
        env_prefix="CALLBOARD_", frozen=True, extra="forbid", populate_by_name=True
    )

    # URLs hold passwords: printed settings must not show them in a log.
    postgres_url: str | None = Field(default=None, repr=False)
    nats_url: str | None = Field(default=None, repr=False)
    nats_credentials: Path | None = None
    nats_nkey_seed_file: Path | None = None
    nats_tls_ca: Path | None = None
    nats_tls_cert: Path | None = None
    nats_tls_key: Path | None = None
    nats_replicas: int = Field(default=1, ge=1, le=5)
    runtime_backend: Literal["memory", "postgres"] = Field(
        default="memory", validation_alias="RUNTIME_BACKEND"
    )
    secrets_dir: Path | None = None
    artifacts: str | None = None
    redis_url: str | None = Field(default=None, repr=False)
    data_dir: Path | None = None
    db_schema: str = Field(default="callboard", validation_alias="CALLBOARD_SCHEMA")
    namespace: str = Field(default="", pattern=r"^[a-z0-9_-]{0,32}$")
    local_delivery: bool = True
    gateway: bool = True
    lease_s: float = Field(default=10.0, gt=0, le=3600)
    heartbeat_s: float | None = Field(default=None, gt=0)
    blocked_s: float = Field(default=60.0, gt=0)
    suspend_after: float = Field(default=5.0, ge=0)
    capacity: int = Field(default=1000, ge=1)
    drain_s: float = Field(default=30.0, ge=0)
    start_wait_s: float | None = Field(default=None, ge=0)
    outage_s: float = Field(default=60.0, ge=0)
    retain_days: float | None = Field(default=30.0, gt=0, le=36_500)
    otlp_endpoint: str | None = Field(
        default=None,
        repr=False,
        validation_alias=AliasChoices("CALLBOARD_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"),
    )
    trace_ratio: float = Field(default=1.0, ge=0, le=1)
    trace_content: bool = False
    trace_redact: str = DEFAULT_NAMES
    jwt_jwks: str | None = Field(default=None, repr=False)
    jwt_issuer: str | None = None
    jwt_audience: str | None = None
    jwt_tenant_claim: str = "tenant"
    jwt_principal_claim: str = Field(default="sub", min_length=1)
    jwt_scopes_claim: str = Field(default="scope", min_length=1)
    jwt_leeway_s: float = Field(default=30.0, ge=0, le=300)
    http: str | None = None

    @field_validator("retain_days", mode="before")
    @classmethod
    def _for_ever(cls, value: object) -> object:
        return None if value == "forever" else value

    @model_validator(mode="after")
    def _beats_in_time(self) -> Self:
        if self.beat_s > self.lease_s / 2:
            msg = f"heartbeat_s={self.beat_s:g} must be at most half of lease_s={self.lease_s:g}"
            raise ValueError(msg)
        return self

    @property
    def beat_s(self) -> float:
        """Seconds between heartbeats."""
        return self.lease_s * 0.3 if self.heartbeat_s is None else self.heartbeat_s


def read_settings(**given: Any) -> Settings:
    """Return the settings: what is `given` and not None wins over the environment.

    Raises:
        ContractError: A value is not allowed; the message names the variable.
    """
    try:
        return Settings(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as exc:
        raise ContractError("; ".join(_complaint(error) for error in exc.errors())) from exc


def _complaint(error: Any) -> str:
    place = "".join(str(part) for part in error["loc"])
    is_whole = place.startswith("CALLBOARD_") or place == "RUNTIME_BACKEND"
    name = place if is_whole else f"CALLBOARD_{place.upper()}"
    given = "" if not place else f"{name}={error['input']!r}: "
    return given + str(error["msg"]).removeprefix("Value error, ")
