"""Both object stores against one set of promises; S3 over real HTTP."""

from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from service.domain import CalibrationInput, FileRef, ServiceError
from service.settings import Settings
from service.storage import (
    LocalStore,
    ObjectMissing,
    ObjectStore,
    Spool,
    StorageError,
    clean_scratch,
    fetch_calibration,
    fetch_file,
    inside,
    open_store,
    scratch_folder,
)

from .conftest import in_threads
from .live import tar

Put = Callable[[bytes], str]


@pytest.fixture(params=["local", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    if request.param == "local":
        return open_store(Settings(data_dir=tmp_path / "data"))
    values = request.getfixturevalue("s3_settings")
    return open_store(Settings(data_dir=tmp_path / "data", s3_prefix="team/qb", **values))


@pytest.fixture
def put(store: ObjectStore, tmp_path: Path) -> Put:
    def put(data: bytes) -> str:
        path = tmp_path / f"in-{os.urandom(4).hex()}"
        path.write_bytes(data)
        digest = hashlib.sha256(data).hexdigest()
        store.put_file(path, digest)
        assert not path.exists()
        return digest

    return put


def test_what_is_put_is_there_whole(store: ObjectStore, put: Put) -> None:
    data = os.urandom(3_000_000)
    digest = put(data)
    assert store.size(digest) == len(data)
    assert b"".join(store.read(digest)) == data
    assert put(data) == digest
    assert list(store.digests()) == [digest]
    store.check()


@pytest.mark.parametrize(
    ("start", "stop"), [(0, None), (5, None), (0, 1), (999, 1000), (10, 20), (7, 7)]
)
def test_ranges(store: ObjectStore, put: Put, start: int, stop: int | None) -> None:
    data = os.urandom(1000)
    digest = put(data)
    assert b"".join(store.read(digest, start, stop)) == data[start:stop]


def test_an_empty_object(store: ObjectStore, put: Put) -> None:
    digest = put(b"")
    assert store.size(digest) == 0
    assert b"".join(store.read(digest)) == b""
    assert b"".join(store.read(digest, 0, 0)) == b""


def test_what_is_not_there(store: ObjectStore, put: Put) -> None:
    absent = "0" * 64
    assert store.size(absent) is None
    with pytest.raises(ObjectMissing):
        store.read(absent)
    assert store.delete(absent) is False
    digest = put(b"x")
    assert store.delete(digest) is True
    assert store.size(digest) is None
    assert list(store.digests()) == []


@pytest.mark.parametrize("bad", ["", "abc", "A" * 64, "../" + "a" * 61, "a" * 63 + "/", "a" * 65])
def test_only_digests_are_keys(store: ObjectStore, bad: str) -> None:
    for call in (store.size, store.read, store.delete):
        with pytest.raises(ValueError, match="SHA-256"):
            call(bad)  # type: ignore[operator]


def test_many_put_the_same_at_once(store: ObjectStore, put: Put) -> None:
    data = os.urandom(100_000)
    digests = in_threads(5, lambda _: put(data))
    assert set(digests) == {hashlib.sha256(data).hexdigest()}
    assert b"".join(store.read(str(digests[0]))) == data


def test_presigned_urls_serve_the_bytes(store: ObjectStore, put: Put) -> None:
    digest = put(b"0123456789")
    url = store.presign(
        digest, disposition='attachment; filename="a.mxq"', media_type="text/x-mxq", expires_s=60
    )
    if isinstance(store, LocalStore):
        assert url is None
        return
    assert url is not None
    answer = httpx.get(url, headers={"Range": "bytes=2-4"})
    assert answer.status_code == 206
    assert answer.content == b"234"
    assert answer.headers["content-disposition"] == 'attachment; filename="a.mxq"'


def test_the_local_store_writes_safely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalStore(tmp_path / "o")
    data = b"abc"
    digest = hashlib.sha256(data).hexdigest()
    source = tmp_path / "in"
    synced: list[str] = []
    real_sync = os.fsync

    def sync(handle: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{handle}").readlink()))
        real_sync(handle)

    monkeypatch.setattr(os, "fsync", sync)
    source.write_bytes(data)
    store.put_file(source, digest)
    target = tmp_path / "o" / digest[:2] / digest[2:4] / digest
    # the content before the name, the name after it
    assert synced == [str(source), str(target.parent)]
    assert target.stat().st_mode & 0o777 == 0o444

    def across(self: Path, other: Path) -> Path:
        if self == source:
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        return self.rename(other)

    monkeypatch.setattr(Path, "replace", across)
    other = hashlib.sha256(b"other").hexdigest()
    source.write_bytes(b"other")
    store.put_file(source, other)
    assert b"".join(store.read(other)) == b"other"
    assert not source.exists()
    assert list((tmp_path / "o" / ".incoming").iterdir()) == []


def test_no_space_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalStore(tmp_path / "o")
    source = tmp_path / "in"
    source.write_bytes(b"x")

    def full(self: Path, other: Path) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(ServiceError) as caught:
        store.put_file(source, "0" * 64)
    assert caught.value.code == "OUTPUT_WRITE_ERROR"
    assert caught.value.retryable
    assert store.size("0" * 64) is None


def test_a_bucket_that_is_not_there(s3_settings: dict[str, str], tmp_path: Path) -> None:
    store = open_store(Settings(data_dir=tmp_path, **{**s3_settings, "s3_bucket": "no-such"}))
    with pytest.raises(StorageError, match="no bucket 'no-such'"):
        store.check()


def test_a_server_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(
        Settings(
            data_dir=tmp_path,
            s3_bucket="b",
            s3_endpoint_url="http://127.0.0.1:9",
            s3_access_key_id="key-id",
            s3_secret_access_key="the-secret",
        )
    )
    with pytest.raises(StorageError) as caught:
        store.check()
    assert "secret" not in str(caught.value) and "127.0.0.1" not in str(caught.value)


def test_spool_hashes_bounds_and_cleans_up(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "o")
    folder = tmp_path / "s"
    with Spool(folder, limit=10, what="the thing") as spool:
        spool.write(b"12345")
        spool.write(memoryview(b"67890"))
        assert spool.sha256 == hashlib.sha256(b"1234567890").hexdigest()
        with pytest.raises(ServiceError) as caught:
            spool.write(b"x")
        assert caught.value.code == "PAYLOAD_TOO_LARGE"
        assert "the thing" in caught.value.detail
    assert list(folder.iterdir()) == []
    with Spool(folder, limit=10, what="the thing") as spool:
        spool.write(b"kept")
        digest = spool.store(store)
    assert list(folder.iterdir()) == []
    assert b"".join(store.read(digest)) == b"kept"


def test_scratch_folders_go_with_their_process(tmp_path: Path) -> None:
    with scratch_folder(tmp_path) as folder:
        (folder / "f").write_bytes(b"x")
        assert clean_scratch(tmp_path) == 0
        assert (folder / "f").exists()
    assert list(tmp_path.iterdir()) == []
    code = (
        "import os, sys, pathlib; from service.storage import scratch_folder\n"
        "with scratch_folder(pathlib.Path(sys.argv[1])) as f:\n"
        "    (f / 'f').write_bytes(b'x'); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert len(list(tmp_path.glob("request-*/f"))) == 1
    (tmp_path / "builds").mkdir()
    assert clean_scratch(tmp_path) == 1
    assert [p.name for p in tmp_path.iterdir()] == ["builds"]


# for the worker -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "/a", "..", "a/../b", "a\\b", "a\0b", "C:/x", "../x"])
def test_inside_keeps_inside(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="unsafe name"):
        inside(tmp_path, name)


def test_fetched_files_are_checked(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "o")
    source = tmp_path / "in"
    source.write_bytes(b"good")
    digest = hashlib.sha256(b"good").hexdigest()
    store.put_file(source, digest)
    ref = FileRef("m.onnx", digest, 4)
    assert fetch_file(store, ref, tmp_path / "a" / "m.onnx").read_bytes() == b"good"
    path = tmp_path / "o" / digest[:2] / digest[2:4] / digest
    path.chmod(0o644)
    path.write_bytes(b"evil")
    with pytest.raises(StorageError, match="other bytes"):
        fetch_file(store, ref, tmp_path / "b")
    assert not (tmp_path / "b").exists()


@pytest.fixture
def packed(tmp_path: Path) -> Iterator[Callable[[bytes], CalibrationInput]]:
    store = LocalStore(tmp_path / "o")

    def pack(data: bytes) -> CalibrationInput:
        source = tmp_path / "in"
        source.write_bytes(data)
        digest = hashlib.sha256(data).hexdigest()
        store.put_file(source, digest)
        return CalibrationInput("d" * 64, FileRef("c.tar", digest, len(data)), "", 1)

    yield pack


def test_a_pack_that_leaves_its_folder_is_refused_again(
    tmp_path: Path, packed: Callable[[bytes], CalibrationInput]
) -> None:
    store = LocalStore(tmp_path / "o")
    with pytest.raises(ValueError, match="unsafe name"):
        fetch_calibration(store, packed(tar({"../evil": b"x"})), tmp_path / "out")
    assert not (tmp_path / "evil").exists()
    with pytest.raises(StorageError, match="damaged"):
        fetch_calibration(store, packed(tar({"a": b"x" * 2000})[:1500]), tmp_path / "out2")
    assert not list(tmp_path.glob("*.tar"))
