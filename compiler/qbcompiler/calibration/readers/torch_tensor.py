"""``.pt`` tensors, where PyTorch is installed; weights-only loading, so no code runs.

PyTorch is no dependency of the compiler. It is imported when the first ``.pt`` sample is read.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from ...ir import Array
from ..spec import data_error
from .base import Content, ReadContext, check_dtype, check_size, opening

__all__ = ["TorchReader"]


class TorchReader:
    """Reads a tensor, or a dictionary of tensors by input name."""

    name = "PyTorch tensor"
    extensions = (".pt", ".pth")

    def read(self, path: Path, context: ReadContext) -> Content:
        """Return the tensor without a name, or the tensors of a dictionary."""
        try:
            torch = import_module("torch")
        except ImportError:
            raise data_error(
                "reading .pt samples needs PyTorch, which is not installed",
                sample=context.sample,
                path=path.name,
                expected="PyTorch, or samples in another format",
                hint="install torch, or save the samples with numpy.save as .npy",
            ) from None
        with opening(path, context, "PyTorch tensor"):
            size = path.stat().st_size
            if size > context.limits.max_sample_bytes + (1 << 20):
                raise data_error(
                    f"the file has {size} bytes, above the bound",
                    sample=context.sample,
                    expected=f"at most {context.limits.max_sample_bytes} bytes",
                    got=size,
                )
            loaded = torch.load(path, map_location="cpu", weights_only=True)
            if isinstance(loaded, torch.Tensor):
                return Content({None: _array(torch, loaded, context, None)})
            if isinstance(loaded, dict) and loaded:
                tensors: dict[str | None, Array] = {}
                for name, value in loaded.items():
                    if not isinstance(name, str) or not isinstance(value, torch.Tensor):
                        break
                    tensors[name] = _array(torch, value, context, name)
                else:
                    return Content(tensors)
            raise data_error(
                f"the file holds a {type(loaded).__name__}",
                sample=context.sample,
                expected="a tensor, or a dictionary of tensors by input name",
                got=type(loaded).__name__,
                hint="save one tensor a sample: torch.save(tensor, path)",
            )


def _array(torch: Any, tensor: Any, context: ReadContext, name: str | None) -> Array:
    if tensor.is_quantized or tensor.layout != torch.strided:
        raise data_error(
            "the tensor is quantized or sparse",
            sample=context.sample,
            expected="a dense tensor",
            got=f"{tensor.dtype} {tensor.layout}",
        )
    if tensor.dtype == torch.bfloat16:  # NumPy has no such type; float32 holds it exactly
        tensor = tensor.float()
    shape = tuple(int(d) for d in tensor.shape)
    check_size(shape, np.dtype(np.uint8), context, name)
    array: Array = tensor.detach().contiguous().numpy()
    check_dtype(array.dtype, context, name)
    check_size(shape, array.dtype, context, name)
    return array
