"""Settings, from the environment (``QB_*``). ``python -m service.settings --markdown`` prints
the table of all of them."""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import quote

from pydantic import Field, SecretStr, field_serializer, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from .domain import LeasePolicy, MemoryClasses, Network
from .engine_settings import EngineSettings
from .settings_checks import SettingsError, checked_secret, is_loopback, own_secret

__all__ = [
    "BUILTIN_ENGINE",
    "EngineSettings",
    "Mode",
    "Settings",
    "SettingsError",
    "get_settings",
    "settings_table",
]

BUILTIN_ENGINE = "qbcompiler"
"""Name of the engine that this repository is; it needs no configuration."""

_MIN_MEMORY_MB = 64

_URL_PASSWORD = re.compile(r"(://[^/@:]*):[^/]*@")


class Mode(StrEnum):
    """How the service is run."""

    EMBEDDED = "embedded"
    TEAM = "team"


class Settings(BaseSettings):
    """Every setting of the service, the workers and the embedded launcher."""

    model_config = SettingsConfigDict(
        env_prefix="QB_",
        extra="ignore",
        frozen=True,
        env_ignore_empty=True,
    )

    mode: Mode = Field(
        default=Mode.EMBEDDED,
        description="`embedded`: one machine, SQLite, files, its own broker. `team`: Postgres, "
        "Redis or Valkey, S3; refuses to start on missing or default secrets.",
    )
    data_dir: Path = Field(
        default=Path("var"),
        description="Folder of the database, the objects, the broker's socket and scratch files.",
    )
    host: str = Field(default="127.0.0.1", description="Address that the service listens on.")
    port: int = Field(
        default=8000, ge=0, le=65535, description="Port that the service listens on; 0 picks one."
    )
    public_url: str | None = Field(
        default=None,
        description="Base URL that clients see, for links; by default that of the request.",
    )
    database_url: str = Field(
        default="",
        repr=False,
        description="SQLAlchemy URL; empty: SQLite in the data folder. Team: postgresql://…",
    )
    broker_url: str = Field(
        default="",
        repr=False,
        description="Celery broker; empty: a Valkey socket in the data folder. Team: redis://…",
    )
    s3_bucket: str | None = Field(
        default=None, description="Bucket for objects; unset: files in the data folder."
    )
    s3_endpoint_url: str | None = Field(
        default=None, description="Endpoint of an S3-compatible server; unset: AWS."
    )
    s3_public_endpoint_url: str | None = Field(
        default=None,
        description="Endpoint that clients reach for presigned downloads, where it differs.",
    )
    s3_region: str = Field(default="us-east-1", description="Region of the bucket.")
    s3_prefix: str = Field(
        default="", description="Prefix of every key in the bucket.", pattern=r"^[A-Za-z0-9/_.-]*$"
    )
    s3_access_key_id: SecretStr | None = Field(
        default=None, description="Access key; unset: boto3's own chain."
    )
    s3_secret_access_key: SecretStr | None = Field(
        default=None, description="Secret key; unset: boto3's own chain."
    )
    s3_presign_downloads: bool = Field(
        default=True,
        description="Answer artifact downloads with 307 to a presigned URL; off: pass bytes on.",
    )
    s3_presign_uploads: bool = Field(
        default=True,
        description="Let clients send parts straight to the bucket; off: the service passes on.",
    )
    s3_presign_seconds: int = Field(
        default=900, ge=30, le=604800, description="How long a presigned URL is valid."
    )
    signing_secret: SecretStr | None = Field(
        default=None,
        description="Key of signed links, at least 32 characters. Embedded: made in the data "
        "folder when unset. Team: required.",
    )
    provenance_key_file: Path | None = Field(
        default=None,
        description="Private ed25519 key (PEM) that signs provenance. Embedded: made in the data "
        "folder when unset. Team: unset leaves statements unsigned.",
    )
    tokens_required: bool = Field(
        default=False,
        description="Whether every call needs a bearer token. Without, only a loopback address "
        "is listened on.",
    )
    engines: dict[str, EngineSettings] = Field(
        default_factory=dict,
        description="More engines, JSON: name to {command, version, queue, description, "
        "readable, writable, network}.",
    )
    sandbox: Literal["auto", "require", "off"] = Field(
        default="auto",
        description="Compilers run without network and see only their scratch folder and "
        "installation. `auto`: as far as the kernel allows it; `require`: or not at all; `off`: "
        "no sandbox.",
    )
    default_engine: str = Field(
        default=BUILTIN_ENGINE, description="Engine of requests that name none."
    )
    queue_prefix: str = Field(
        default="qb.", pattern=r"^[A-Za-z0-9_.-]{0,32}$", description="Prefix of queue names."
    )
    worker_concurrency: int = Field(
        default=1, ge=1, le=256, description="Builds that one worker runs at a time."
    )
    worker_threads: int = Field(
        default=0, ge=0, le=1024, description="Threads of one compiler; 0 takes the CPU count."
    )
    lease_seconds: float = Field(
        default=30.0, ge=1.0, le=3600.0, description="A worker silent for longer counts as lost."
    )
    heartbeat_seconds: float = Field(
        default=0.5,
        ge=0.05,
        le=60.0,
        description="Time between a worker's heartbeats; also how soon it learns of a cancel.",
    )
    reconcile_seconds: float = Field(
        default=30.0, ge=0.1, le=3600.0, description="Time between two runs of the reconciler."
    )
    resend_seconds: float = Field(
        default=60.0,
        ge=1.0,
        le=86400.0,
        description="A build queued for longer than this gets another broker message.",
    )
    max_worker_losses: int = Field(
        default=3, ge=1, le=100, description="Lost workers before a build fails: WORKER_LOST."
    )
    outage_seconds: float = Field(
        default=120.0,
        ge=0.0,
        le=3600.0,
        description="How long a worker goes on while the database or the object store is away.",
    )
    queue_limit_s: int = Field(
        default=86400, ge=1, le=31_536_000, description="Longest and default wait in the queue."
    )
    run_limit_s: int = Field(
        default=21600, ge=1, le=31_536_000, description="Longest and default run."
    )
    memory_limit_mb: int | None = Field(
        default=None,
        ge=64,
        description="Most and default memory of a compiler, MiB; unset: no limit but a request's.",
    )
    memory_classes: dict[str, int] = Field(
        default_factory=dict,
        description="Memory classes, JSON: name to MiB of one compiler. Each has a queue; "
        "`qbserver worker --memory-class NAME` serves it. Takes the place of QB_MEMORY_LIMIT_MB.",
    )
    rate_per_minute: int | None = Field(
        default=None,
        ge=1,
        description="Requests a minute that each token may make of one service process; unset: "
        "no bound. A tenth of them may come at once.",
    )
    max_active_jobs: int | None = Field(
        default=None, ge=1, description="Most jobs of a project that wait or run; unset: no bound."
    )
    max_project_bytes: int | None = Field(
        default=None,
        ge=1,
        description="Bytes of models, calibration sets and artifacts from which on a project gets "
        "no uploads and no builds; unset: no bound.",
    )
    disk_limit_mb: int = Field(
        default=65536, ge=64, description="Most scratch space of one compiler, MiB."
    )
    max_model_bytes: int = Field(
        default=16 << 30, ge=1024, description="Largest model upload, external data included."
    )
    max_calibration_bytes: int = Field(
        default=8 << 30, ge=1024, description="Largest calibration upload."
    )
    max_unpacked_bytes: int = Field(
        default=32 << 30, ge=1024, description="Largest calibration set, unpacked."
    )
    max_unpack_ratio: float = Field(
        default=200.0,
        ge=1.0,
        description="Most bytes that one byte of an archive may unpack to, above 16 MiB.",
    )
    max_archive_entries: int = Field(
        default=100_000, ge=1, le=10_000_000, description="Most entries of an archive."
    )
    max_image_pixels: int = Field(
        default=100_000_000, ge=1, description="Most pixels of a calibration image."
    )
    max_json_bytes: int = Field(default=1 << 20, ge=1024, description="Largest JSON body.")
    max_json_depth: int = Field(default=32, ge=2, le=200, description="Deepest JSON body.")
    max_labels: int = Field(default=32, ge=0, le=1000, description="Most labels of one resource.")
    max_matrix_jobs: int = Field(default=64, ge=1, le=1000, description="Most jobs of one matrix.")
    upload_part_bytes: int = Field(
        default=32 << 20,
        ge=4096,
        le=1 << 30,
        description="Size of the parts of a large upload; S3 wants at least 5 MiB.",
    )
    upload_hours: float = Field(
        default=24.0,
        gt=0.0,
        le=8760.0,
        description="How long an upload in parts is kept that is not completed, or not yet used.",
    )
    max_open_uploads: int = Field(
        default=100, ge=1, le=100_000, description="Most unfinished uploads of one project."
    )
    max_log_bytes: int = Field(
        default=4 << 20, ge=4096, description="Longest log kept for one build; then it is cut."
    )
    max_wait_seconds: float = Field(
        default=60.0, ge=0.0, le=600.0, description="Longest `wait` of a status call."
    )
    max_streams: int = Field(
        default=500, ge=1, description="Most open event streams and waiting calls of one process."
    )
    sse_keepalive_seconds: float = Field(
        default=15.0, ge=0.1, le=120.0, description="Time between comments on an idle stream."
    )
    poll_seconds: float = Field(
        default=0.2,
        ge=0.01,
        le=10.0,
        description="Time between two looks at the database for streams and waiting calls.",
    )
    idempotency_hours: int = Field(
        default=24, ge=1, le=8760, description="How long an Idempotency-Key is remembered."
    )
    retention_days: int | None = Field(
        default=None,
        ge=0,
        le=36500,
        description="Days after which `qbserver gc` removes ended jobs with their builds and "
        "results, in projects without a retention of their own; unset or 0: never.",
    )
    audit_days: int | None = Field(
        default=None,
        ge=0,
        le=36500,
        description="Days after which `qbserver gc` removes entries of the audit log; unset or 0: "
        "never.",
    )
    link_max_seconds: int = Field(
        default=30 * 86400, ge=60, description="Longest life of a download link."
    )
    webhook_allowed_networks: tuple[Network, ...] = Field(
        default=(),
        description="Networks that webhooks may be sent to although they are loopback, private or "
        'link-local, JSON: `["10.1.0.0/16"]`.',
    )
    webhook_tries: int = Field(
        default=10,
        ge=1,
        le=50,
        description="Tries to deliver a webhook until it has failed.",
    )
    webhook_retry_seconds: float = Field(
        default=5.0,
        ge=0.01,
        le=3600.0,
        description="Pause after a webhook's first try; each later one is four times as long, up "
        "to six hours.",
    )
    webhook_timeout_seconds: float = Field(
        default=10.0, ge=0.1, le=60.0, description="Longest that a webhook's receiver may take."
    )
    webhook_concurrency: int = Field(
        default=8, ge=1, le=100, description="Webhooks that one service delivers at a time."
    )
    log_level: str = Field(
        default="info",
        pattern="^(debug|info|warning|error)$",
        description="Least serious log line that is written.",
    )
    log_json: bool = Field(default=False, description="Write log lines as JSON.")
    worker_metrics_port: int | None = Field(
        default=None,
        ge=1,
        le=65535,
        description="Port on which a worker answers Prometheus; unset: none.",
    )
    worker_metrics_host: str = Field(
        default="127.0.0.1", description="Address of that port; it asks for no token."
    )
    otlp_endpoint: str | None = Field(
        default=None,
        pattern=r"^https?://\S+$",
        description="OpenTelemetry collector (OTLP over HTTP, http://host:4318) that gets traces; "
        "unset: none are made. Headers by OTEL_EXPORTER_OTLP_HEADERS.",
    )
    trace_ratio: float = Field(
        default=1.0,
        ge=0.0,
        le=1.0,
        description="Share of requests that are traced; a caller's traceparent decides for it.",
    )

    @field_validator("data_dir", mode="after")
    @classmethod
    def _absolute(cls, value: Path) -> Path:
        return value.expanduser().absolute()

    @field_validator("public_url", mode="after")
    @classmethod
    def _no_slash(cls, value: str | None) -> str | None:
        if value is None:
            return None
        if not value.startswith(("http://", "https://")):
            raise ValueError("must start with http:// or https://")
        return value.rstrip("/")

    @field_validator("otlp_endpoint", mode="after")
    @classmethod
    def _collector(cls, value: str | None) -> str | None:
        return None if value is None else value.rstrip("/").removesuffix("/v1/traces")

    @field_validator("engines", mode="after")
    @classmethod
    def _engine_names(cls, value: dict[str, EngineSettings]) -> dict[str, EngineSettings]:
        for name in value:
            if name == BUILTIN_ENGINE:
                raise ValueError(f"{BUILTIN_ENGINE!r} is the server's own engine")
            if not name or len(name) > 64 or not all(c.isalnum() or c in "._-" for c in name):
                raise ValueError(f"engine name {name!r}: letters, digits, '.', '_', '-' only")
        return value

    @field_validator("memory_classes", mode="after")
    @classmethod
    def _class_names(cls, value: dict[str, int]) -> dict[str, int]:
        for name, size in value.items():
            if not re.fullmatch(r"[A-Za-z0-9_-]{1,32}", name):
                raise ValueError(f"memory class {name!r}: letters, digits, '_', '-' only")
            if size < _MIN_MEMORY_MB:
                raise ValueError(f"memory class {name!r}: at least {_MIN_MEMORY_MB} MiB")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.default_engine != BUILTIN_ENGINE and self.default_engine not in self.engines:
            raise ValueError(f"QB_DEFAULT_ENGINE={self.default_engine!r} is not in QB_ENGINES")
        if self.s3_bucket is not None and self.upload_part_bytes < 5 << 20:
            raise ValueError("QB_UPLOAD_PART_BYTES must be at least 5242880 with a bucket")
        if self.heartbeat_seconds * 2 > self.lease_seconds:
            raise ValueError(
                "QB_HEARTBEAT_SECONDS must be at most half of QB_LEASE_SECONDS, or one late "
                "heartbeat loses the lease"
            )
        if self.memory_classes and self.memory_limit_mb is not None:
            raise ValueError(
                "set QB_MEMORY_CLASSES or QB_MEMORY_LIMIT_MB: the largest class is the limit"
            )
        if (self.s3_access_key_id is None) != (self.s3_secret_access_key is None):
            raise ValueError("set both QB_S3_ACCESS_KEY_ID and QB_S3_SECRET_ACCESS_KEY, or none")
        return self

    # derived ------------------------------------------------------------------------------

    @field_serializer("database_url", "broker_url")
    def _without_password(self, value: str) -> str:
        """Hide the password where settings are shown or dumped, as those of `SecretStr` are."""
        return _URL_PASSWORD.sub(r"\1:***@", value)

    @property
    def effective_database_url(self) -> str:
        """The database to open: the one set, or SQLite in the data folder."""
        if self.database_url:
            return self.database_url
        return f"sqlite:///{self.data_dir / 'qb.sqlite3'}"

    @property
    def effective_broker_url(self) -> str:
        """The broker to use: the one set, or the Valkey socket in the data folder."""
        if self.broker_url:
            return self.broker_url
        return f"redis+socket://{quote(str(self.broker_socket))}"

    @property
    def broker_socket(self) -> Path:
        """Where the embedded Valkey listens.

        A Unix socket's path is bounded at about 100 bytes; a longer data folder gets a socket in
        the temporary folder, named after it.
        """
        path = self.data_dir / "valkey.sock"
        if len(os.fsencode(path)) <= 96:
            return path
        import hashlib

        name = hashlib.sha256(os.fsencode(self.data_dir)).hexdigest()[:16]
        return Path(tempfile.gettempdir()) / f"qb-{os.getuid()}-{name}" / "valkey.sock"

    @property
    def objects_dir(self) -> Path:
        """Folder of the objects, where no bucket is set."""
        return self.data_dir / "objects"

    @property
    def scratch_dir(self) -> Path:
        """Folder of temporary files; on the same file system as the objects."""
        return self.data_dir / "tmp"

    @property
    def uploads_dir(self) -> Path:
        """Folder of unfinished uploads; on the same file system as the objects."""
        return self.data_dir / "uploads"

    def lease_policy(self) -> LeasePolicy:
        """The times and counts by which the stores work."""
        return LeasePolicy(
            lease_seconds=self.lease_seconds,
            max_losses=self.max_worker_losses,
            resend_seconds=self.resend_seconds,
            max_log_bytes=self.max_log_bytes,
        )

    @property
    def classes(self) -> MemoryClasses:
        """The memory classes, of which there may be none."""
        return MemoryClasses(self.memory_classes)

    def memory_bound(self, queue: str, asked_mb: int | None) -> int | None:
        """Return the memory of the compiler of a build in a queue, MiB; None for no bound."""
        return self.classes.bound(queue, asked_mb) or self.memory_limit_mb

    def queue_of(self, engine: str) -> str:
        """Return the queue that builds of an engine wait in."""
        if engine == BUILTIN_ENGINE:
            return f"{self.queue_prefix}{BUILTIN_ENGINE}"
        own = self.engines[engine].queue
        return f"{self.queue_prefix}{own or engine}"

    def check_bind(self, host: str | None = None) -> None:
        """Refuse an address that others can reach while no token is asked for.

        Raises:
            SettingsError: the address is not loopback and tokens are off.
        """
        host = self.host if host is None else host
        if self.tokens_required or is_loopback(host):
            return
        raise SettingsError(
            f"refusing to listen on {host}: without tokens anyone who reaches it could use the "
            "server; listen on 127.0.0.1, or set QB_TOKENS_REQUIRED=true and make a token"
        )

    def check_team(self) -> None:
        """Refuse to run for a team without what a team needs.

        Raises:
            SettingsError: names every setting that is missing.
        """
        if self.mode is not Mode.TEAM:
            return
        wrong: list[str] = []
        if not self.database_url.startswith("postgres"):
            wrong.append("QB_DATABASE_URL must be a postgresql:// URL")
        if not self.broker_url:
            wrong.append("QB_BROKER_URL must name a Redis or Valkey server")
        if self.s3_bucket is None:
            wrong.append("QB_S3_BUCKET must name a bucket")
        if self.signing_secret is None:
            wrong.append("QB_SIGNING_SECRET must be set (openssl rand -hex 32)")
        if wrong:
            raise SettingsError("team mode is not complete: " + "; ".join(wrong))
        self.signing_key()

    def signing_key(self) -> bytes:
        """Return the key of signed links.

        In embedded mode it is made once, in ``signing.key`` in the data folder, readable by its
        owner only.

        Raises:
            SettingsError: team mode without a secret, or a secret that is short or a known default.
        """
        if self.signing_secret is not None:
            return checked_secret(self.signing_secret.get_secret_value())
        if self.mode is Mode.TEAM:
            raise SettingsError("QB_SIGNING_SECRET must be set in team mode (openssl rand -hex 32)")
        return own_secret(self.data_dir / "signing.key")


@lru_cache(maxsize=1)
def get_settings() -> Settings:
    """Return the settings of this process, read once from the environment."""
    return Settings()


def settings_table() -> str:
    """Return the table of all settings, as Markdown."""
    rows = ["| variable | default | what it does |", "| --- | --- | --- |"]
    for name, field in Settings.model_fields.items():
        rows.append(f"| `QB_{name.upper()}` | {_default_text(field)} | {field.description} |")
    return "\n".join(rows) + "\n"


def _default_text(field: Any) -> str:
    value = field.get_default(call_default_factory=True)
    if value is None or value in ("", {}, ()):
        return "unset"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{value.value if isinstance(value, StrEnum) else value}`"


def _main() -> int:
    parser = argparse.ArgumentParser(description="Show the settings of the service.")
    parser.add_argument("--markdown", action="store_true", help="the table of all settings")
    args = parser.parse_args()
    if args.markdown:
        sys.stdout.write(settings_table())
        return 0
    settings = Settings()
    for name in Settings.model_fields:
        text = _URL_PASSWORD.sub(r"\1:***@", str(getattr(settings, name)))
        sys.stdout.write(f"QB_{name.upper()}={text}\n")
    return 0


if __name__ == "__main__":
    sys.exit(_main())
