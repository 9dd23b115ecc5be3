"""Tables and stores. Every public method of a store is one transaction."""

from .audit import Action, Actor, AuditEntry, AuditFilter, AuditStore, acting, acting_as
from .builds import BuildStore
from .catalog import ArtifactStore, CalibrationStore, ModelStore, NewCalibration, NewModel
from .engine import DATABASE_ERRORS, Database, database_url, is_full
from .gauges import QueueGauges, read_gauges
from .holds import ObjectHolds
from .jobs import JobStore
from .matrices import Matrix, MatrixStore
from .migrate import current_revision, head_revision, run_migrations
from .outbox import Message, OutboxDispatcher, Sender
from .paging import Page
from .reconcile import Reconciler, ReconcileReport
from .requests import JobFilter, JobView, NewJob, Submission
from .tokens import TokenStore
from .uploads import UploadStore
from .usage import stored_bytes
from .webhooks import RetryPolicy, WebhookSecret, WebhookStore

__all__ = [
    "DATABASE_ERRORS",
    "Action",
    "Actor",
    "ArtifactStore",
    "AuditEntry",
    "AuditFilter",
    "AuditStore",
    "BuildStore",
    "CalibrationStore",
    "Database",
    "JobFilter",
    "JobStore",
    "JobView",
    "Matrix",
    "MatrixStore",
    "Message",
    "ModelStore",
    "NewCalibration",
    "NewJob",
    "NewModel",
    "ObjectHolds",
    "OutboxDispatcher",
    "Page",
    "QueueGauges",
    "ReconcileReport",
    "Reconciler",
    "RetryPolicy",
    "Sender",
    "Submission",
    "TokenStore",
    "UploadStore",
    "WebhookSecret",
    "WebhookStore",
    "acting",
    "acting_as",
    "current_revision",
    "database_url",
    "head_revision",
    "is_full",
    "read_gauges",
    "run_migrations",
    "stored_bytes",
]
