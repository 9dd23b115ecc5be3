"""The integer primitives written as plainly as possible: the oracle for operators and kernels."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]


class ReferenceKernels:
    """``qbcompiler.ops.Kernels`` in int64 NumPy, one kernel position after another."""

    def conv(
        self,
        x: NDArray[Any],
        w: NDArray[Any],
        *,
        strides: Sequence[int],
        pads: Sequence[int],
        dilations: Sequence[int],
        groups: int,
    ) -> Int64:
        n = w.ndim - 2
        wide = np.pad(
            x.astype(np.int64), [(0, 0), (0, 0), *((pads[i], pads[n + i]) for i in range(n))]
        )
        kernel = w.shape[2:]
        out = [
            (wide.shape[2 + i] - dilations[i] * (kernel[i] - 1) - 1) // strides[i] + 1
            for i in range(n)
        ]
        result = np.zeros((x.shape[0], w.shape[0], *out), dtype=np.int64)
        inputs, outputs = w.shape[1], w.shape[0] // groups
        for at in product(*map(range, kernel)):
            window = tuple(
                slice(
                    at[i] * dilations[i],
                    at[i] * dilations[i] + (out[i] - 1) * strides[i] + 1,
                    strides[i],
                )
                for i in range(n)
            )
            part = wide[(slice(None), slice(None), *window)]
            for g in range(groups):
                weight = w[(slice(g * outputs, (g + 1) * outputs), slice(None), *at)]
                term = np.tensordot(
                    weight.astype(np.int64), part[:, g * inputs : (g + 1) * inputs], axes=(1, 1)
                )
                result[:, g * outputs : (g + 1) * outputs] += np.moveaxis(term, 0, 1)
        return result

    def conv_transpose(
        self,
        x: NDArray[Any],
        w: NDArray[Any],
        *,
        strides: Sequence[int],
        pads: Sequence[int],
        dilations: Sequence[int],
        output_padding: Sequence[int],
        groups: int,
    ) -> Int64:
        n = w.ndim - 2
        kernel = w.shape[2:]
        full = [
            (x.shape[2 + i] - 1) * strides[i] + dilations[i] * (kernel[i] - 1) + 1 for i in range(n)
        ]
        room = [full[i] + output_padding[i] for i in range(n)]
        result = np.zeros((x.shape[0], w.shape[1] * groups, *room), dtype=np.int64)
        inputs, outputs = w.shape[0] // groups, w.shape[1]
        for at in product(*map(range, kernel)):
            window = tuple(
                slice(
                    at[i] * dilations[i],
                    at[i] * dilations[i] + (x.shape[2 + i] - 1) * strides[i] + 1,
                    strides[i],
                )
                for i in range(n)
            )
            for g in range(groups):
                weight = w[(slice(g * inputs, (g + 1) * inputs), slice(None), *at)]
                part = x[:, g * inputs : (g + 1) * inputs].astype(np.int64)
                term = np.moveaxis(np.tensordot(weight.astype(np.int64), part, axes=(0, 1)), 0, 1)
                result[(slice(None), slice(g * outputs, (g + 1) * outputs), *window)] += term
        crop = tuple(slice(pads[i], room[i] - pads[n + i]) for i in range(n))
        return result[(slice(None), slice(None), *crop)]

    def matmul(self, a: NDArray[Any], b: NDArray[Any]) -> Int64:
        result: Int64 = np.matmul(a.astype(np.int64), b.astype(np.int64))
        return result
