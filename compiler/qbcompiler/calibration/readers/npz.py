"""``.npz`` archives: one ``.npy`` entry for each tensor name; no pickle."""

from __future__ import annotations

import zipfile
from pathlib import Path

from ...ir import Array
from ..spec import data_error
from .base import Content, ReadContext, opening
from .npy import read_npy

__all__ = ["NpzReader"]

_MAX_ENTRIES = 1024


class NpzReader:
    """Reads NumPy's ``.npz`` format; entries are bounded by their headers, not by the archive."""

    name = "NumPy archive"
    extensions = (".npz",)

    def read(self, path: Path, context: ReadContext) -> Content:
        """Return the arrays by entry name, without ``.npy``."""
        tensors: dict[str | None, Array] = {}
        total = 0
        with opening(path, context, "NumPy archive"), zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            if len(entries) > _MAX_ENTRIES:
                raise data_error(
                    f"the archive has {len(entries)} entries",
                    sample=context.sample,
                    expected=f"at most {_MAX_ENTRIES}",
                    got=len(entries),
                )
            for entry in entries:
                name = entry.filename
                if not name.endswith(".npy"):
                    raise data_error(
                        f"the archive has an entry {name[:200]!r} that is not an array",
                        sample=context.sample,
                        expected="entries NAME.npy",
                        got=name[:200],
                        hint="write the file with numpy.savez",
                    )
                stem = name.removesuffix(".npy")
                if stem in tensors:
                    raise data_error(
                        f"the archive has two entries {stem!r}", sample=context.sample, got=stem
                    )
                with archive.open(entry) as stream:
                    array = read_npy(stream, context, stem, None)
                    if stream.read(1):
                        raise ValueError(f"entry {name!r} goes on after its array")
                tensors[stem] = array
                total += array.nbytes
                if total > context.limits.max_sample_bytes:
                    raise data_error(
                        f"the archive's arrays exceed {context.limits.max_sample_bytes} bytes",
                        sample=context.sample,
                        expected=f"at most {context.limits.max_sample_bytes} bytes",
                    )
            if not tensors:
                raise data_error("the archive holds no array", sample=context.sample)
        return Content(tensors)
