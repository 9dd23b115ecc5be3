"""Mutations: of bytes, of JSON trees, of protobuf messages, of containers and archives.

All take the generator that decides; the same generator state gives the same mutant.
"""

from __future__ import annotations

import copy
import io
import json
import random
import struct
import tarfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from qbcompiler.package.writer import Section, write_container

__all__ = [
    "INTEGERS",
    "TEXTS",
    "damage_archive",
    "damage_bytes",
    "damage_container",
    "damage_json",
    "damage_message",
    "plain_archive",
]

INTEGERS = (
    *(-1, 0, 1, 2, 3, 7, 8, 16, 63, 64, 127, 128, 255, 256, 1000, 4096, 65535, 65536, 1_000_000),
    *(2**31 - 1, 2**31, -(2**31), 2**32, 2**40, 2**53, 2**62, 2**63 - 1, -(2**63), -2, -3, 10**9),
)
TEXTS = (
    *("", ".", "..", "/", "../secret", "../../../../etc/passwd", "/etc/passwd", "a\0b", "\n", "%s"),
    *("é", "\u202e", "\ud800", "x" * 300, "x" * 70_000, "nan", "1e999", "-1", "0x10", "null"),
    *("__class__", "$ref", "{}", "[]", "a/b/c", "C:\\x", "\\\\host\\x", "<script>", "'; --"),
)
_SMALL_ARCHIVE = 1 << 20


def damage_bytes(rng: random.Random, data: bytes) -> bytes:
    """Flip, cut, insert, repeat, blank or overwrite at one to eight places."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 3, 8))):
        at = rng.randrange(len(out) + 1)
        length = min(rng.choice((1, 1, 2, 4, 8, 64, 1024)), max(len(out) - at, 0))
        match rng.randrange(8):
            case 0 if at < len(out):
                out[at] ^= 1 << rng.randrange(8)
            case 1:
                del out[at:]
            case 2:
                del out[at : at + length]
            case 3:
                out[at:at] = out[at : at + length] * rng.choice((1, 2, 50))
            case 4:
                out[at : at + length] = bytes([rng.choice((0, 255, 127, 128))]) * length
            case 5:
                word = struct.pack(rng.choice(("<q", ">q")), rng.choice(INTEGERS) % 2**63)
                out[at : at + 8] = word[: rng.choice((1, 2, 4, 8))]
            case 6:
                out[at:at] = rng.randbytes(rng.choice((1, 4, 40)))
            case _:
                other = rng.randrange(len(out) + 1)
                out[at : at + length] = out[other : other + length]
    return bytes(out)


# -- trees ----------------------------------------------------------------------------------


def damage_json(rng: random.Random, data: Any) -> Any:
    """Return a copy of JSON data with one to four places changed."""
    box = [copy.deepcopy(data)]
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        places = _places(box)
        holder, key = rng.choice(places)
        old = holder[key]
        match rng.randrange(10):
            case 0 if holder is not box:
                del holder[key]
            case 1 if isinstance(holder, list) and holder is not box:
                holder.insert(key, copy.deepcopy(old))
            case 2 if isinstance(old, dict):
                old[rng.choice(TEXTS)] = _leaf(rng)
            case 3:
                other, name = rng.choice(places)
                # a copy of the whole within itself would double with each step
                holder[key] = copy.deepcopy(other[name]) if other is not box else _leaf(rng)
            case 4:
                holder[key] = _nest(rng, old)
            case 5 if isinstance(old, list):
                rng.shuffle(old)
            case 6 if isinstance(old, (int, float)) and not isinstance(old, bool):
                holder[key] = old + rng.choice((-1, 1, 0.5, -old, old, 2**32))
            case 7 if isinstance(old, str) and old:
                at = rng.randrange(len(old))
                holder[key] = old[:at] + rng.choice(("", "x", "0", "A", "/", "é")) + old[at + 1 :]
            case _:
                holder[key] = _leaf(rng)
    return box[0]


def _places(box: list[Any]) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    work: list[Any] = [box]
    while work:
        holder = work.pop()
        keys: Any = list(holder) if isinstance(holder, dict) else range(len(holder))
        for key in keys:
            found.append((holder, key))
            if isinstance(holder[key], (dict, list)):
                work.append(holder[key])
    return found


def _leaf(rng: random.Random) -> Any:
    kinds: tuple[Callable[[], Any], ...] = (
        lambda: rng.choice(INTEGERS),
        lambda: rng.choice(TEXTS[:-4]),
        lambda: rng.choice((0.0, -0.0, 1e-300, 1e300, 0.5, -1.5)),
        lambda: rng.choice((None, True, False, {}, [], [[]], {"": None})),
        lambda: [rng.choice(INTEGERS) for _ in range(rng.choice((1, 4, 300)))],
    )
    return rng.choice(kinds)()


def _nest(rng: random.Random, value: Any) -> Any:
    for _ in range(rng.choice((1, 2, 70, 700))):
        value = [value] if rng.random() < 0.5 else {"a": value}
    return value


# -- protobuf -------------------------------------------------------------------------------


def damage_message(rng: random.Random, message: Any, words: Sequence[str]) -> None:
    """Change a message in one to four places, by its fields; ``words`` are names that it knows."""
    for _ in range(rng.choice((1, 1, 2, 2, 4))):
        messages = _messages(message)
        owner = rng.choice(messages)
        _damage_field(rng, owner, messages, words)


def _messages(root: Any) -> list[Any]:
    found, work = [], [root]
    while work:
        message = work.pop()
        found.append(message)
        for field, value in message.ListFields():
            if field.type == field.TYPE_MESSAGE:
                work.extend(value if field.is_repeated else [value])
    return found


def _damage_field(
    rng: random.Random, owner: Any, messages: list[Any], words: Sequence[str]
) -> None:
    there = [f for f, _ in owner.ListFields()]
    fields = there if there and rng.random() < 0.75 else list(owner.DESCRIPTOR.fields)
    field = rng.choice(fields)
    value = getattr(owner, field.name)
    if field.is_repeated:
        _damage_list(rng, field, value, messages, words)
    elif field.type == field.TYPE_MESSAGE:
        same = [m for m in messages if m.DESCRIPTOR is field.message_type and m is not value]
        # copying an ancestor into itself is the one thing that protobuf does not allow
        if same and rng.random() < 0.6:
            data = rng.choice(same).SerializeToString()
            if len(data) < _SMALL_ARCHIVE:
                owner.ClearField(field.name)
                value.ParseFromString(data)
        elif rng.random() < 0.7:
            owner.ClearField(field.name)
        else:
            value.SetInParent()
    elif rng.random() < 0.2:
        owner.ClearField(field.name)
    else:
        setattr(owner, field.name, _scalar(rng, field, value, words))


def _damage_list(
    rng: random.Random, field: Any, items: Any, messages: list[Any], words: Sequence[str]
) -> None:
    at = rng.randrange(len(items)) if len(items) else 0
    action = rng.randrange(5)
    if action == 0 and len(items):
        del items[at]
    elif action == 1 and len(items):
        del items[at:]
    elif field.type == field.TYPE_MESSAGE:
        same = [m for m in messages if m.DESCRIPTOR is field.message_type]
        if same:
            data = rng.choice(same).SerializeToString()
            for _ in range(rng.choice((1, 1, 2, 30))):
                if len(data) < _SMALL_ARCHIVE:
                    items.add().ParseFromString(data)
        else:
            items.add()
    elif len(items) and action < 4:
        items[at] = _scalar(rng, field, items[at], words)
    else:
        items.extend([_scalar(rng, field, field.default_value, words)] * rng.choice((1, 2, 100)))


def _scalar(rng: random.Random, field: Any, old: Any, words: Sequence[str]) -> Any:
    if field.type == field.TYPE_STRING:
        text = rng.choice(words) if words and rng.random() < 0.6 else rng.choice(TEXTS)
        return text.encode("utf-8", "replace").decode()
    if field.type == field.TYPE_BYTES:
        return damage_bytes(rng, bytes(old))
    if field.type in (field.TYPE_FLOAT, field.TYPE_DOUBLE):
        return rng.choice((0.0, -1.0, 1e30, float("nan"), float("inf"), 1e-40, -0.5))
    if field.type == field.TYPE_ENUM:
        return rng.choice(field.enum_type.values).number
    if field.type == field.TYPE_BOOL:
        return rng.random() < 0.5
    low, high = (-(2**31), 2**31 - 1) if "INT32" in _type_name(field) else (-(2**63), 2**63 - 1)
    if "UINT" in _type_name(field):
        low, high = 0, high * 2 + 1
    return min(max(rng.choice(INTEGERS), low), high)


def _type_name(field: Any) -> str:
    names = ("INT32", "SINT32", "SFIXED32", "UINT32", "FIXED32", "UINT64", "FIXED64")
    found = next((n for n in names if getattr(field, f"TYPE_{n}") == field.type), "INT64")
    return {"SFIXED32": "INT32", "FIXED32": "UINT32", "FIXED64": "UINT64"}.get(found, found)


# -- containers and archives ----------------------------------------------------------------


def damage_container(rng: random.Random, data: bytes, scratch: Path) -> bytes:
    """Change the JSON inside an MBLT or MXQ and write it with sound sizes and hashes."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(parts.pop("manifest.json"))
    kinds = {s["name"]: s["kind"] for s in manifest.pop("sections")}
    name = rng.choice(["manifest.json", *parts, *parts])
    if name == "manifest.json":
        manifest = damage_json(rng, manifest)
    elif name.endswith(".json"):
        parts[name] = _dumps(damage_json(rng, json.loads(parts[name])))
    else:
        parts[name] = _damage_tensors(rng, parts[name])
    if rng.random() < 0.05:
        parts.pop(rng.choice(list(parts)))
    out = scratch / "container"
    sections = [Section.of_bytes(n, kinds[n], d) for n, d in parts.items()]
    try:
        write_container(out, manifest if isinstance(manifest, dict) else {"x": manifest}, sections)
    except (ValueError, UnicodeError, TypeError, RecursionError):
        return damage_bytes(rng, data)
    return out.read_bytes()


def _damage_tensors(rng: random.Random, data: bytes) -> bytes:
    (length,) = struct.unpack("<Q", data[:8])
    header, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    if rng.random() < 0.3:
        return data[: 8 + length] + damage_bytes(rng, body)
    text = _dumps(damage_json(rng, header))
    return struct.pack("<Q", rng.choice((len(text),) * 9 + (2**40,))) + text + body


def _dumps(data: Any) -> bytes:
    try:
        return json.dumps(data).encode()
    except (RecursionError, ValueError):
        return b"[" * 5000 + b"]" * 5000


def plain_archive(files: dict[str, bytes]) -> bytes:
    """Pack files as a ZIP archive."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def damage_archive(rng: random.Random, files: dict[str, bytes]) -> bytes:
    """Pack files as some kind of archive with hostile entries, and sometimes damage the whole."""
    if rng.random() < 0.5:
        data = _zip(rng, files)
    else:
        data = _tar(rng, files)
        data = _packed(rng, data)
    return damage_bytes(rng, data) if rng.random() < 0.5 else data


def _name(rng: random.Random, name: str) -> str:
    return name if rng.random() < 0.7 else rng.choice((*TEXTS, name.upper(), f"{name}/x", "cal"))


def _zip(rng: random.Random, files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in files.items():
            text = _name(rng, name).encode("utf-8", "replace").decode() or "x"
            info = zipfile.ZipInfo(text[:60_000])
            info.external_attr = rng.choice((0, 0o100644, 0o120777, 0o040755, 0o020644)) << 16
            info.compress_type = rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, 14, 12))
            content = data if rng.random() < 0.8 else bytes(rng.choice((0, 21 << 20)))
            archive.writestr(info, content)
    return buffer.getvalue()


def _tar(rng: random.Random, files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    kinds = (*(tarfile.REGTYPE,) * 8, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE)
    kinds = (*kinds, tarfile.FIFOTYPE, tarfile.DIRTYPE, tarfile.GNUTYPE_SPARSE)
    form = rng.choice((tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT))
    with tarfile.open(fileobj=buffer, mode="w", format=form) as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(_name(rng, name).encode("utf-8", "replace").decode())
            info.type = rng.choice(kinds)
            info.linkname = rng.choice(TEXTS[:7])
            info.size = len(data) if info.type == tarfile.REGTYPE else 0
            if form == tarfile.PAX_FORMAT and rng.random() < 0.3:
                info.pax_headers = {rng.choice(("path", "size", "GNU.sparse.map")): "9" * 20}
            try:
                archive.addfile(info, io.BytesIO(data))
            except ValueError:  # a name that this form of tar cannot have
                continue
    return buffer.getvalue()


def _packed(rng: random.Random, data: bytes) -> bytes:
    import gzip

    import zstandard

    match rng.randrange(4):
        case 0:
            return gzip.compress(data, 1)
        case 1:
            return zstandard.compress(data)
        case 2:
            return gzip.compress(data + bytes(rng.choice((0, 21 << 20))), 1)
        case _:
            return data
