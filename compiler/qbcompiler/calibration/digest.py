"""The content digest of calibration data.

A sample's canonical bytes are, for each tensor in sorted order of its name: the name, the NumPy
dtype name, the shape and the elements in little-endian C order, each field preceded by its
length. No file name, folder, time or file format enters, so a copy elsewhere has the same digest.

The digest of a data set is SHA-256 over a domain tag and the SHA-256 of each sample's canonical
bytes, in sample order. Two levels let samples be read in any order and by several threads.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Mapping

import numpy as np

from ..ir import Array

__all__ = ["TAG", "combine", "sample_digest"]

TAG = b"qbcompiler calibration 1\n"
"""Domain tag of the tensors that feed a model; see :func:`combine`."""


def sample_digest(sample: Mapping[str, Array]) -> bytes:
    """Return SHA-256 (32 bytes) over the canonical bytes of one sample.

    Args:
        sample: tensor by input name, as the model takes it.
    """
    sha = hashlib.sha256()
    for name in sorted(sample):
        array = sample[name]
        data = np.ascontiguousarray(array)
        data = data.astype(data.dtype.newbyteorder("<"), copy=False)
        for text in (name.encode("utf-8"), data.dtype.name.encode("ascii")):
            sha.update(struct.pack("<Q", len(text)))
            sha.update(text)
        sha.update(struct.pack(f"<{array.ndim + 1}Q", array.ndim, *array.shape))
        sha.update(struct.pack("<Q", data.nbytes))
        if data.size:
            sha.update(data.reshape(-1).view(np.uint8).data)
    return sha.digest()


def combine(samples: Iterable[bytes], tag: bytes = TAG) -> str:
    """Return the hexadecimal digest of a data set from its samples' digests, in order."""
    sha = hashlib.sha256(tag)
    for digest in samples:
        sha.update(digest)
    return sha.hexdigest()
