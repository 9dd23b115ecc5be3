"""256-entry tables: every function of one int8 number, built in float64, stored in the file."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ..ir import Array, QuantParams

__all__ = ["build_table"]

Float64 = NDArray[np.float64]


def build_table(
    function: Callable[[Float64], Float64], source: QuantParams, out: QuantParams
) -> Array:
    """Return ``y_q`` for ``x_q = -128 … 127``: ``clamp(round_half_even(f(x) / s_out) + z_out)``.

    Infinities saturate. The result is the nearest output step, so the error is at most half a
    step.

    Args:
        function: vectorised, defined (not NaN) on the whole grid.
        source, out: 8-bit grids of input and output, one scale each.

    Raises:
        ValueError: a grid has more than 8 bits, or the function is undefined somewhere.
    """
    if source.bits > 8 or out.bits > 8:
        raise ValueError("16-bit activations are not supported by this operator")
    x = (np.arange(-128, 128, dtype=np.float64) - source.zero_point) * source.scale
    with np.errstate(over="ignore", divide="ignore", under="ignore"):
        y = np.asarray(function(x), dtype=np.float64) / out.scale
    if np.isnan(y).any():
        raise ValueError("the function is undefined on part of the input's grid")
    q = np.clip(np.rint(y) + out.zero_point, out.qmin, out.qmax)
    result: Array = q.astype(np.int8)
    return result
