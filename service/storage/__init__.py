"""Object storage: a port, a local folder, S3, and the way of bytes in and out."""

from ..settings import Settings
from .fetch import fetch_calibration, fetch_file, fetch_model, inside
from .held import HeldStore
from .local import LocalStore
from .port import CHUNK, ObjectMissing, ObjectStore, StorageError, check_digest
from .scratch import clean_scratch, scratch_folder
from .spool import Spool
from .staging import Heartbeat, LocalStaging, Staging

__all__ = [
    "CHUNK",
    "Heartbeat",
    "HeldStore",
    "LocalStaging",
    "LocalStore",
    "ObjectMissing",
    "ObjectStore",
    "Spool",
    "Staging",
    "StorageError",
    "check_digest",
    "clean_scratch",
    "fetch_calibration",
    "fetch_file",
    "fetch_model",
    "inside",
    "open_staging",
    "open_store",
    "scratch_folder",
]


def open_store(settings: Settings) -> ObjectStore:
    """Return the object store that the settings name."""
    if settings.s3_bucket is None:
        return LocalStore(settings.objects_dir)
    # boto3 takes a quarter of a second to import; embedded servers never need it
    from .s3 import S3Options, S3Store

    key, secret = settings.s3_access_key_id, settings.s3_secret_access_key
    return S3Store(
        S3Options(
            bucket=settings.s3_bucket,
            endpoint_url=settings.s3_endpoint_url,
            public_endpoint_url=settings.s3_public_endpoint_url,
            region=settings.s3_region,
            prefix=settings.s3_prefix,
            access_key_id=None if key is None else key.get_secret_value(),
            secret_access_key=None if secret is None else secret.get_secret_value(),
            presign=settings.s3_presign_downloads,
        )
    )


def open_staging(settings: Settings, store: ObjectStore) -> Staging:
    """Return where unfinished uploads to a store are kept."""
    if isinstance(store, LocalStore):
        return LocalStaging(settings.uploads_dir, store)
    from .s3 import S3Store
    from .s3_staging import S3Staging

    assert isinstance(store, S3Store)
    return S3Staging(store, presign=settings.s3_presign_uploads)
