"""What is fed with mutants: each target makes one from a generator and hands it to the code."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import yaml

from qbcompiler import mblt_compile, mxq_compile, mxq_compile_from_mblt
from qbcompiler.calibration import InputSpec, Limits, inspect_folder, open_dataset
from qbcompiler.config import resolve_config
from qbcompiler.errors import InternalError, QbCompilerError
from qbcompiler.ir import DType
from qbcompiler.package import read_mblt, read_mxq
from qbcompiler.runtime import Accelerator, Model
from service.domain import ServiceError
from service.intake import (
    ArchiveError,
    ArchiveLimits,
    NotAModel,
    pack_calibration,
    read_model,
    unpack,
)
from service.storage import LocalStore
from worker.engine.protocol import MAX_LINE, Lines, read_line

from . import seeds
from .mutate import (
    damage_archive,
    damage_bytes,
    damage_container,
    damage_json,
    damage_message,
    plain_archive,
)

__all__ = ["TARGETS", "TYPED", "Target"]

TYPED = (QbCompilerError, ServiceError, NotAModel, ArchiveError)
"""The errors that bad input may end in, but for ``InternalError``."""

DEVICE = "regulus-rb"


class Wrong(AssertionError):
    """A case ended as no case may."""


@dataclass(frozen=True)
class Target:
    """One way in.

    Attributes:
        good: returns input as it should be, which must be taken.
        make: returns a mutant; may use the folder.
        feed: hands it to the code, with an empty folder to work in.
        cases: how many the suite's short run tries.
    """

    good: Callable[[], Sequence[bytes]]
    make: Callable[[random.Random, Path], bytes]
    feed: Callable[[bytes, Path], None]
    cases: int


# -- models ---------------------------------------------------------------------------------


def _make_onnx(rng: random.Random, folder: Path) -> bytes:
    data = rng.choice(seeds.models())
    if rng.random() < 0.15:
        return damage_bytes(rng, data)
    model = onnx.ModelProto.FromString(data)
    damage_message(rng, model, seeds.WORDS)
    made: bytes = model.SerializeToString()
    return made


def _put_model(data: bytes, folder: Path) -> Path:
    path = folder / "m.onnx"
    path.write_bytes(data)
    (folder / "weights.bin").write_bytes(bytes(3072))
    return path


def _parse(data: bytes, folder: Path) -> None:
    path = _put_model(data, folder)
    _typed(lambda: read_model(path))
    shapes = _shapes(data)
    mblt_compile(
        path,
        folder / "m.mblt",
        DEVICE,
        cpu_offload=True,
        input_shape_dict=shapes,
    )
    with read_mblt(folder / "m.mblt") as back:
        _ = back.graph


def _shapes(data: bytes) -> dict[str, tuple[int, ...]] | None:
    """What a caller would give for the open dimensions of the seeds."""
    if b"\x12\x01N" not in data:
        return None
    return {"x": (10, 1, 8) if b"GRU" in data else (1, 3, 16, 16)}


def _compile(data: bytes, folder: Path) -> None:
    mxq_compile(
        _put_model(data, folder),
        save_path=folder / "m.mxq",
        target_device=DEVICE,
        use_random_calib=True,
        cpu_offload=True,
        input_shape_dict=_shapes(data),
    )
    _infer(folder / "m.mxq")


# -- packages -------------------------------------------------------------------------------


def _make_mblt(rng: random.Random, folder: Path) -> bytes:
    return _damaged_package(rng, folder, seeds.packages()[0])


def _make_mxq(rng: random.Random, folder: Path) -> bytes:
    return _damaged_package(rng, folder, seeds.packages()[1])


def _damaged_package(rng: random.Random, folder: Path, data: bytes) -> bytes:
    if rng.random() < 0.15:
        return damage_bytes(rng, data)
    return damage_container(rng, data, folder)


def _read_mblt(data: bytes, folder: Path) -> None:
    path = folder / "m.mblt"
    path.write_bytes(data)
    _typed(lambda: read_model(path))
    with read_mblt(path) as opened:
        _ = opened.graph, opened.partitioned
    mxq_compile_from_mblt(
        path, save_path=folder / "m.mxq", target_device=DEVICE, use_random_calib=True
    )
    _infer(folder / "m.mxq")


def _read_mxq(data: bytes, folder: Path) -> None:
    path = folder / "m.mxq"
    path.write_bytes(data)
    with read_mxq(path) as opened:
        opened.verify()
        _ = opened.body, opened.head, opened.tail
        for scheme in opened.schemes:
            opened.program(scheme)
    _infer(path)


def _infer(path: Path) -> None:
    with Model(path) as model:
        model.launch(Accelerator(DEVICE))
        with np.errstate(all="ignore"):
            model.infer_chw([np.zeros(p.shape, p.dtype.numpy) for p in model.inputs])


# -- calibration data -----------------------------------------------------------------------

_ARCHIVE = ArchiveLimits(entries=50, unpacked_bytes=20 << 20, ratio=100)
_PIXELS = 1_000_000


def _make_samples(rng: random.Random, folder: Path) -> bytes:
    """A file of one kind, after a byte that tells which."""
    files = seeds.calibration_files()
    number = rng.randrange(len(files))
    name = list(files)[number]
    data = files[name]
    if name.endswith(".json"):
        changed = json.dumps(damage_json(rng, json.loads(data))).encode()
        return bytes([number]) + changed
    return bytes([number]) + damage_bytes(rng, data)


def _samples(data: bytes, folder: Path) -> None:
    files = seeds.calibration_files()
    home = folder / "set"
    home.mkdir()
    for name in ("0.npy", "1.npy"):
        (home / name).write_bytes(files[name])
    name = list(files)[data[0] % len(files)]
    (home / name).write_bytes(data[1:])
    limits = Limits(max_pixels=_PIXELS, max_sample_bytes=50 << 20, max_samples=1000, confined=True)
    source = home / name if name.startswith("list") else home
    inspect_folder(source, limits)
    spec = InputSpec("x", (1, 3, 16, 16), DType.FLOAT32, "NCHW", 3)

    def read() -> None:
        opened = open_dataset(source, [spec], limits=limits)
        for index in range(len(opened)):
            _typed(lambda index=index: opened[index])  # type: ignore[misc]

    _typed(read)


def _make_archive(rng: random.Random, folder: Path) -> bytes:
    files = dict(seeds.calibration_files())
    for name in rng.sample(list(files), 5):
        files[name] = damage_bytes(rng, files[name])
    chosen = rng.sample(list(files), rng.choice((1, 3, 8)))
    return damage_archive(rng, {name: files[name] for name in chosen})


def _archive(data: bytes, folder: Path) -> None:
    path, home = folder / "upload", folder / "set"
    path.write_bytes(data)
    home.mkdir()
    try:
        files = unpack(path, home, _ARCHIVE)
    finally:
        if any(p.is_symlink() or not (p.is_dir() or p.is_file()) for p in home.rglob("*")):
            raise Wrong("a link or a device was unpacked")
        if sum(p.stat().st_size for p in home.rglob("*") if p.is_file()) > (20 << 20) + (4 << 20):
            raise Wrong("more was unpacked than the bound")
        if {p.name for p in folder.iterdir()} != {"upload", "set"}:
            raise Wrong("a file was left beside the folder")
    scratch = folder / "pack"
    scratch.mkdir()
    for entry in ("", "list.txt", "list.json"):
        again = folder / f"again{entry}"
        shutil.copytree(home, again)
        _typed(
            lambda again=again, entry=entry: pack_calibration(  # type: ignore[misc]
                again,
                files,
                entry,
                scratch=scratch,
                store=LocalStore(folder / "store"),
                max_pixels=_PIXELS,
            )
        )
        shutil.rmtree(scratch)
        scratch.mkdir()


# -- configurations and lines ---------------------------------------------------------------


def _make_config(rng: random.Random, folder: Path) -> bytes:
    data = rng.choice(seeds.configs())
    kind = rng.choice((b"j", b"y"))
    data = damage_json(rng, data)
    try:
        text = json.dumps(data) if kind == b"j" else yaml.safe_dump(data, allow_unicode=True)
    except (RecursionError, ValueError):
        text = "[" * 3000 if kind == b"j" else "a: " + "[" * 3000
    raw = text.encode("utf-8", "surrogatepass")
    return kind + (damage_bytes(rng, raw) if rng.random() < 0.3 else raw)


def _config(data: bytes, folder: Path) -> None:
    path = folder / ("c.json" if data[:1] == b"j" else "c.yaml")
    path.write_bytes(data[1:])
    resolved = resolve_config(compile_config=path)
    again = resolve_config(compile_config=resolved.config.model_dump(mode="json", by_alias=True))
    if again.config != resolved.config:
        raise Wrong("a configuration is another one once it was written and read")


_SAID: tuple[Mapping[str, Any], ...] = (
    {"type": "progress", "phase": "parse", "current": 3, "total": 10, "message": "x"},
    {"type": "status", "phase": "store", "message": "x"},
    {"type": "log", "level": "warning", "message": "x"},
    {"type": "error", "code": "CONFIG_ERROR", "message": "x", "hint": "y", "details": {"a": 1}},
    {"type": "result", "files": [{"kind": "mxq", "path": "out/m.mxq", "sha256": "0" * 64,
                                  "size": 3}], "summary": {"a": {"b": [1]}}},
)  # fmt: skip


def _make_lines(rng: random.Random, folder: Path) -> bytes:
    lines = []
    for _ in range(rng.choice((1, 3, 10))):
        try:
            lines.append(json.dumps(damage_json(rng, rng.choice(_SAID))).encode())
        except RecursionError:
            lines.append(b"{" * 3000)
    data = rng.choice((b"\n", b"\r\n", b"")).join(lines)
    return damage_bytes(rng, data) if rng.random() < 0.4 else data


def _lines(data: bytes, folder: Path) -> None:
    cutter = Lines()
    for line in [*cutter.feed(data[:7]), *cutter.feed(data[7:]), *cutter.close()]:
        if len(line) > MAX_LINE + 2:
            raise Wrong("a line is longer than the bound")
        read_line(line)


def _typed(call: Callable[[], object]) -> None:
    """Do one step of several; a typed error ends the step alone."""
    try:
        call()
    except InternalError:
        raise
    except TYPED:
        pass


def _good_samples() -> list[bytes]:
    files = seeds.calibration_files()
    return [bytes([n]) + files[name] for n, name in enumerate(files)]


def _good_archive() -> list[bytes]:
    files = seeds.calibration_files()
    return [plain_archive({n: files[n] for n in ("0.npy", "list.txt", "6.png")})]


def _good_configs() -> list[bytes]:
    return [b"j" + json.dumps(c).encode() for c in seeds.configs()]


def _good_lines() -> list[bytes]:
    return [json.dumps(line).encode() + b"\n" for line in _SAID]


TARGETS: Mapping[str, Target] = {
    "onnx": Target(seeds.models, _make_onnx, _parse, 150),
    "compile": Target(seeds.models, _make_onnx, _compile, 0),
    "mblt": Target(lambda: seeds.packages()[:1], _make_mblt, _read_mblt, 50),
    "mxq": Target(lambda: seeds.packages()[1:], _make_mxq, _read_mxq, 60),
    "samples": Target(_good_samples, _make_samples, _samples, 100),
    "archive": Target(_good_archive, _make_archive, _archive, 25),
    "config": Target(_good_configs, _make_config, _config, 60),
    "lines": Target(_good_lines, _make_lines, _lines, 300),
}
