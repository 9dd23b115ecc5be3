"""The intermediate representation. Depends on NumPy only."""

from .attrs import Attrs, NoAttrs
from .boxes import Box
from .graph import Graph, Node, Value
from .layout import channel_last, layout_name, storage_orders
from .quantized import IntGraph, IntLayer, IntValue, QuantParams
from .text import dump
from .types import Array, DType, TensorType, held_bytes
from .verify import Stage, VerifyError, verify

__all__ = [
    "Array",
    "Attrs",
    "Box",
    "DType",
    "Graph",
    "IntGraph",
    "IntLayer",
    "IntValue",
    "NoAttrs",
    "Node",
    "QuantParams",
    "Stage",
    "TensorType",
    "Value",
    "VerifyError",
    "channel_last",
    "dump",
    "held_bytes",
    "layout_name",
    "storage_orders",
    "verify",
]
