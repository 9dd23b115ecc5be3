"""Send what the server does not hold yet."""

from __future__ import annotations

import hashlib
import mmap
import os
import secrets
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from ..errors import ModelLoadError
from ..progress import Reporter
from .connection import Server, path_of
from .parts import LARGE, BytesSource, FileSource, Source, TarSource, upload_parts
from .samples import SampleFile, gather, list_digest, manifest_digest

__all__ = ["ModelFile", "send_calibration", "send_model"]

_CHUNK = 1 << 20
_MAX_EXTERNAL = 1000


class ModelFile:
    """A source model or MBLT to send: a file, or bytes in memory.

    Args:
        model: a path, bytes, or an object with ``SerializeToString`` (an ``onnx.ModelProto``).
        folder: where its external data lie; the model's own folder by default.
    """

    def __init__(self, model: Any, folder: str | os.PathLike[str] | None = None) -> None:
        self.data: bytes | None = None
        self.path: Path | None = None
        if isinstance(model, (str, os.PathLike)):
            self.path = Path(model)
            self.name = self.path.name
            self.size = self.path.stat().st_size
        else:
            self.data = model if isinstance(model, bytes) else bytes(model.SerializeToString())
            self.name = "model.onnx"
            self.size = len(self.data)
        base = folder if folder is not None else (self.path.parent if self.path else None)
        self.folder = None if base is None else Path(base)

    def chunks(self) -> Iterator[bytes]:
        """Yield the bytes."""
        if self.path is None:
            assert self.data is not None
            yield from (self.data[i : i + _CHUNK] for i in range(0, len(self.data), _CHUNK))
        else:
            yield from _chunks(self.path)

    def source(self) -> Source:
        """Return the bytes, for reading at any place."""
        if self.path is None:
            assert self.data is not None
            return BytesSource(self.name, self.data)
        return FileSource(self.path, self.name)

    def external(self, name: str) -> Path:
        """Return the external file that the server says the model names.

        A server is not believed: the model itself must hold the name, and the file lie in its
        folder, so that none can ask for another file of this machine.

        Raises:
            ModelLoadError: there is no such file, or the model does not name it.
        """
        pure = PurePosixPath(name.replace("\\", "/"))
        if self.folder is None or pure.is_absolute() or ".." in pure.parts or not self._names(name):
            raise ModelLoadError(
                f"{self.name} keeps weights in {name!r}, which cannot be sent",
                hint="save the model with external data beside it",
            )
        path = self.folder / pure
        if not path.resolve().is_relative_to(self.folder.resolve()) or not path.is_file():
            raise ModelLoadError(
                f"external data {name!r} of {self.name} does not exist in {self.folder}",
                details={"path": str(path)},
                hint="copy the model together with its external data",
            )
        return path

    def _names(self, name: str) -> bool:
        wanted = name.encode()
        if self.data is not None:
            return wanted in self.data
        assert self.path is not None
        with (
            self.path.open("rb") as stream,
            mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as view,
        ):
            return view.find(wanted) >= 0


def send_model(server: Server, model: ModelFile, reporter: Reporter) -> dict[str, Any]:
    """Return the server's model with these bytes, sending them where it has none.

    Raises:
        QbCompilerError: the server refuses it, or cannot be reached.
    """
    own = _sha256(model.chunks())
    if (held := _held(server, "models", own)) is not None:
        reporter.info(f"the server holds {model.name} already")
        return held
    sources = [(model.source(), own)]
    try:
        if model.size > LARGE:
            return _from_uploads(server, sources, reporter)
        return _post_model(server, model, [], reporter)
    except ModelLoadError as exc:
        missing = exc.details.get("missing")
        if not isinstance(missing, list) or not 0 < len(missing) <= _MAX_EXTERNAL:
            raise
        names = sorted(str(name) for name in missing)
    external = [SampleFile(n, p, p.stat().st_size) for n in names for p in [model.external(n)]]
    sources += [(FileSource(f.path, f.name), _sha256(_chunks(f.path))) for f in external]
    digest = list_digest([{"path": s.name, "sha256": d, "size": s.size} for s, d in sources])
    if (held := _held(server, "models", digest)) is not None:
        reporter.info(f"the server holds {model.name} and its external data already")
        return held
    if sum(source.size for source, _ in sources) > LARGE:
        return _from_uploads(server, sources, reporter)
    return _post_model(server, model, external, reporter)


def send_calibration(
    server: Server, sources: Sequence[str | os.PathLike[str]], reporter: Reporter
) -> dict[str, Any]:
    """Return the server's calibration set with these samples, sending them where it has none.

    Raises:
        CalibrationDataError: a source is missing or malformed.
        QbCompilerError: the server refuses them, or cannot be reached.
    """
    files = gather(sources)
    total = sum(f.size for f in files)
    digest = manifest_digest(files, lambda _: None)
    if (held := _held(server, "calibrations", digest)) is not None:
        reporter.info("the server holds the calibration data already")
        return held
    name = Path(sources[0]).name or "calibration"
    if total > LARGE:
        archive = TarSource(name, files)
        upload_id = _upload(server, archive, _sha256(archive.read(0, archive.size)), reporter)
        return dict(
            server.post(
                path_of("calibrations"),
                {"upload_id": upload_id, "name": name},
                key=str(uuid.uuid4()),
            )
        )
    parts = [("file", f.name, _chunks(f.path), f.size) for f in files]
    return _post_form(server, "calibrations", {"name": name}, parts, total, reporter)


def _held(server: Server, kind: str, digest: str) -> dict[str, Any] | None:
    items = server.get(path_of(kind), digest=digest, limit=1)["items"]
    return dict(items[0]) if items else None


def _post_model(
    server: Server, model: ModelFile, external: Sequence[SampleFile], reporter: Reporter
) -> dict[str, Any]:
    parts = [("file", model.name, model.chunks(), model.size)]
    parts += [("external_data", f.name, _chunks(f.path), f.size) for f in external]
    total = sum(size for *_, size in parts)
    return _post_form(server, "models", {"name": model.name}, parts, total, reporter)


def _from_uploads(
    server: Server, sources: Sequence[tuple[Source, str]], reporter: Reporter
) -> dict[str, Any]:
    """Upload a model and its external data in parts, and make a model of them."""
    total = sum(source.size for source, _ in sources)
    ids: list[str] = []
    done = 0
    for source, digest in sources:
        ids.append(_upload(server, source, digest, reporter, done, total))
        done += source.size
    body = {
        "upload_id": ids[0],
        "name": sources[0][0].name,
        "external_data": {s.name: i for (s, _), i in zip(sources[1:], ids[1:], strict=True)},
    }
    return dict(server.post(path_of("models"), body, key=str(uuid.uuid4())))


def _upload(
    server: Server,
    source: Source,
    digest: str,
    reporter: Reporter,
    before: int = 0,
    total: int | None = None,
) -> str:
    whole = _kib(source.size if total is None else total)
    return upload_parts(
        server,
        source,
        digest,
        lambda done: reporter.progress("upload", _kib(before + done), whole),
    )


_Part = tuple[str, str, Iterator[bytes], int]


def _post_form(
    server: Server,
    kind: str,
    fields: dict[str, str],
    parts: Sequence[_Part],
    total: int,
    reporter: Reporter,
) -> dict[str, Any]:
    """Post a form whose files are read while they are sent."""
    boundary = f"qb-{secrets.token_hex(16)}"
    heads = [_head(boundary, field, name) for field, name, _, _ in parts]
    front = b"".join(
        _field(boundary, name) + value.encode() + b"\r\n" for name, value in fields.items()
    )
    end = f"--{boundary}--\r\n".encode()
    length = (
        len(front) + len(end) + sum(len(h) + p[3] + 2 for h, p in zip(heads, parts, strict=True))
    )

    def body() -> Iterator[bytes]:
        sent = 0
        yield front
        for head, (_, name, chunks, size) in zip(heads, parts, strict=True):
            yield head
            left = size
            for data in chunks:
                left -= len(data)
                sent += len(data)
                yield data
                reporter.progress("upload", _kib(sent), _kib(total))
            if left:
                raise ModelLoadError(f"{name} changed while it was sent")
            yield b"\r\n"
        yield end

    headers = {
        "Content-Type": f"multipart/form-data; boundary={boundary}",
        "Content-Length": str(length),
    }
    return dict(server.send("POST", path_of(kind), body(), headers))


def _head(boundary: str, field: str, name: str) -> bytes:
    quoted = name.replace("\\", "/")
    for char, escape in (('"', "%22"), ("\r", "%0D"), ("\n", "%0A")):
        quoted = quoted.replace(char, escape)
    return (
        f'--{boundary}\r\nContent-Disposition: form-data; name="{field}"; filename="{quoted}"\r\n'
        "Content-Type: application/octet-stream\r\n\r\n"
    ).encode()


def _field(boundary: str, name: str) -> bytes:
    return f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n'.encode()


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as stream:
        while data := stream.read(_CHUNK):
            yield data


def _sha256(chunks: Iterator[bytes]) -> str:
    digest = hashlib.sha256()
    for data in chunks:
        digest.update(data)
    return digest.hexdigest()


def _kib(size: int) -> int:
    return -(-size // 1024)
