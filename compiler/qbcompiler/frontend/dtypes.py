"""ONNX's element type codes and the IR's element types."""

from __future__ import annotations

from onnx import TensorProto

from ..ir import DType

__all__ = ["DTYPES", "dtype_of", "element_name", "element_type"]

DTYPES: dict[int, DType] = {
    TensorProto.FLOAT16: DType.FLOAT16,
    TensorProto.FLOAT: DType.FLOAT32,
    TensorProto.DOUBLE: DType.FLOAT64,
    TensorProto.INT8: DType.INT8,
    TensorProto.INT16: DType.INT16,
    TensorProto.INT32: DType.INT32,
    TensorProto.INT64: DType.INT64,
    TensorProto.UINT8: DType.UINT8,
    TensorProto.UINT16: DType.UINT16,
    TensorProto.UINT32: DType.UINT32,
    TensorProto.UINT64: DType.UINT64,
    TensorProto.BOOL: DType.BOOL,
    TensorProto.STRING: DType.STRING,
    TensorProto.BFLOAT16: DType.BFLOAT16,
    TensorProto.FLOAT8E4M3FN: DType.FLOAT8E4M3FN,
    TensorProto.FLOAT8E4M3FNUZ: DType.FLOAT8E4M3FNUZ,
    TensorProto.FLOAT8E5M2: DType.FLOAT8E5M2,
    TensorProto.FLOAT8E5M2FNUZ: DType.FLOAT8E5M2FNUZ,
    TensorProto.FLOAT8E8M0: DType.FLOAT8E8M0,
    TensorProto.FLOAT4E2M1: DType.FLOAT4E2M1,
    TensorProto.INT4: DType.INT4,
    TensorProto.UINT4: DType.UINT4,
    TensorProto.INT2: DType.INT2,
    TensorProto.UINT2: DType.UINT2,
}

_CODES = {dtype: code for code, dtype in DTYPES.items()}


def element_type(dtype: DType) -> int:
    """Return the ``onnx.TensorProto`` code of an element type."""
    return _CODES[dtype]


def dtype_of(code: int) -> DType | None:
    """Return the element type of an ONNX code, None for one that the IR does not have."""
    return DTYPES.get(code)


def element_name(code: int) -> str:
    """Return the lower-case name of an ONNX element type code."""
    try:
        name: str = TensorProto.DataType.Name(code)
    except ValueError:
        return f"number {code}"
    return name.lower()
