"""Settings from environment variables `CALLBOARD_…`. Some are also options of commands."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Final, Literal, Self

from pydantic import AliasChoices, Field, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from actors._kernel.hidden import DEFAULT_NAMES
from actors._kernel.stores.limits import MAX_SLOTS
from actors.errors import MAX_WAIT_S, ContractError

NATS_LOGIN: Final = (
    "nats_credentials",
    "nats_nkey_seed_file",
    "nats_tls_ca",
    "nats_tls_cert",
    "nats_tls_key",
)
"""The settings of the NATS login that are not in the URL."""


class Settings(BaseSettings):
    """Settings of a host or a client. Durations are seconds.

    Attributes:
        postgres_url: ``postgresql://user:password@host:port/database``; `CALLBOARD_POSTGRES_URL`.
        nats_url: ``nats://user:password@host:port``, several separated by commas. Without it messages between
            hosts go through PostgreSQL; `CALLBOARD_NATS_URL`.
        nats_credentials: Path of a credentials file (``.creds``) for the NATS login, instead of
            user and password in the URL; `CALLBOARD_NATS_CREDENTIALS`.
        nats_nkey_seed_file: Path of a file with the nkey seed of the NATS user (``SU…``), instead of
            credentials; `CALLBOARD_NATS_NKEY_SEED_FILE`.
        nats_tls_ca: Path of the CA that signed the NATS server's certificate. If it is set, the connection
            must be encrypted. If only the URL says ``tls://``, the machine's CAs are used;
            `CALLBOARD_NATS_TLS_CA`.
        nats_tls_cert: Path of the certificate that this process shows NATS; `CALLBOARD_NATS_TLS_CERT`.
        nats_tls_key: Path of that certificate's key; `CALLBOARD_NATS_TLS_KEY`.
        nats_replicas: Copies of each stream: 1, or 3 on a cluster; `CALLBOARD_NATS_REPLICAS`.
        runtime_backend: Store of this process's task boards while a runtime is open, see
            `GlobalTaskStore`: ``memory``, or ``postgres`` for the runtime's own database;
            `RUNTIME_BACKEND`.
        secrets_dir: Folder with one file per secret, which has the secret's name. Without it secrets come
            from variables `CALLBOARD_SECRET_<NAME>`; `CALLBOARD_SECRETS_DIR`.
        api_token: Token of commands with `--server URL`; `CALLBOARD_API_TOKEN`.
        artifacts: Location of the bytes of new artifacts: ``s3://BUCKET/PREFIX?endpoint=https://HOST``, or
            the absolute path of a folder that all hosts share. Without it they are in Postgres. Hosts and
            commands must have the same value; `CALLBOARD_ARTIFACTS`.
        redis_url: ``redis://:password@host:port/0`` of an optional Redis server; `CALLBOARD_REDIS_URL`.
        data_dir: Folder of embedded servers, which are used if there is no URL; `CALLBOARD_DATA_DIR`.
        db_schema: Schema of the tables; `CALLBOARD_SCHEMA`.
        namespace: Prefix of every stream and subject, so that deployments can share a NATS server: up to
            32 of a-z, 0-9, `_` and `-`; `CALLBOARD_NAMESPACE`.
        local_delivery: True if messages to an agent of the same host may skip the broker. The order and
            the promises are the same; `CALLBOARD_LOCAL_DELIVERY`.
        gateway: True if this host answers external clients (docs/subjects.md, "Asking").
        lease_s: Time for which a silent host keeps its agents; `CALLBOARD_LEASE_S`.
        heartbeat_s: Time between two renewals of a host's lease. Default: 0.3 of the lease.
        blocked_s: Time for which code may block the event loop before another host gets its agent. Other
            agents of the host move after `lease_s`. The second time the run is parked.
        suspend_after: Time for which a waiting run stays in memory. 0: it is suspended at once.
        capacity: Greatest number of runs that execute at once. Twice as many may wait in memory.
        drain_s: Time that executing code has to end when a host stops.
        start_wait_s: Longest wait for a server at the start. Default: no limit.
        outage_s: Longest wait of a call for a server that does not answer any more.
        retain_days: Days for which ended runs and dead letters are kept (tombstones and dead letters for at
            least 8). ``forever`` (None here) keeps all; `CALLBOARD_RETAIN_DAYS`.
        otlp_endpoint: ``http://HOST:4318`` of a collector of traces. Without it there are no traces;
            `CALLBOARD_OTLP_ENDPOINT`, else `OTEL_EXPORTER_OTLP_ENDPOINT`.
        trace_ratio: Ratio of the conversations that begin here and are traced, 0 to 1. All hosts must have the
            same value; `CALLBOARD_TRACE_RATIO`.
        trace_content: True if traces have content: prompts, answers, arguments, messages of
            errors; `CALLBOARD_TRACE_CONTENT`.
        trace_redact: Names, separated by commas. Traces and events of sessions hide each value whose key
            contains one of them; `CALLBOARD_TRACE_REDACT`.
        jwt_jwks: File or URL of the public keys of JSON web tokens, for `callboard serve --auth jwt`;
            `CALLBOARD_JWT_JWKS`.
        jwt_issuer: Required claim ``iss`` of tokens. Without it the claim is not checked;
            `CALLBOARD_JWT_ISSUER`.
        jwt_audience: Required value in the claim ``aud`` of tokens. Without it tokens with this claim are
            refused; `CALLBOARD_JWT_AUDIENCE`.
        jwt_tenant_claim: The claim with the tenant. If it is empty, all tokens are of the default tenant;
            `CALLBOARD_JWT_TENANT_CLAIM`.
        jwt_principal_claim: The claim with the principal; `CALLBOARD_JWT_PRINCIPAL_CLAIM`.
        jwt_scopes_claim: The claim with the scopes; `CALLBOARD_JWT_SCOPES_CLAIM`.
        jwt_leeway_s: Allowed difference of clocks; `CALLBOARD_JWT_LEEWAY_S`.
        http: ``HOST:PORT`` where a host answers ``/healthz``, ``/readyz`` and ``/metrics``. Port 0 means
            a free port. Without it a host does not answer HTTP; `CALLBOARD_HTTP`.
    """

    model_config: ClassVar[SettingsConfigDict] = SettingsConfigDict(
        env_prefix="CALLBOARD_", frozen=True, extra="forbid", populate_by_name=True
    )

    # `repr=False`, because URLs have passwords, which printed settings must not show in a log.
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
    api_token: str | None = Field(default=None, repr=False)
    artifacts: str | None = None
    redis_url: str | None = Field(default=None, repr=False)
    data_dir: Path | None = None
    db_schema: str = Field(default="callboard", validation_alias="CALLBOARD_SCHEMA")
    namespace: str = Field(default="", pattern=r"^[a-z0-9_-]{0,32}$")
    local_delivery: bool = True
    gateway: bool = True
    lease_s: float = Field(default=10.0, ge=0.1, le=3600)
    heartbeat_s: float | None = Field(default=None, ge=0.01, le=1800)
    blocked_s: float = Field(default=60.0, gt=0, le=MAX_WAIT_S)
    suspend_after: float = Field(default=5.0, ge=0, le=MAX_WAIT_S)
    capacity: int = Field(default=1000, ge=1, le=MAX_SLOTS)
    drain_s: float = Field(default=30.0, ge=0, le=MAX_WAIT_S)
    start_wait_s: float | None = Field(default=None, ge=0, le=MAX_WAIT_S)
    outage_s: float = Field(default=60.0, ge=0, le=MAX_WAIT_S)
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


def read_settings(**overrides: Any) -> Settings:
    """Return the settings of the environment. A value in `overrides` that is not None overrides them.

    Raises:
        ContractError: A value is not allowed. The message names the variable.
    """
    try:
        return Settings(**{name: value for name, value in overrides.items() if value is not None})
    except ValidationError as exc:
        raise ContractError("; ".join(_complaint(error) for error in exc.errors())) from exc


def _complaint(error: Any) -> str:
    location = "".join(str(part) for part in error["loc"])
    is_whole = location.startswith("CALLBOARD_") or location == "RUNTIME_BACKEND"
    name = location if is_whole else f"CALLBOARD_{location.upper()}"
    setting = "" if not location else f"{name}={error['input']!r}: "
    return setting + str(error["msg"]).removeprefix("Value error, ")
