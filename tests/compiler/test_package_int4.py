"""4-bit weights, two in a byte."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from qbcompiler.config import CompileConfig
from qbcompiler.errors import FormatError
from qbcompiler.package.int4 import pack, unpack
from qbcompiler.package.int_graph_json import int_graph_to_json, read_int_graph
from qbcompiler.package.json_io import Fields
from qbcompiler.quantization import quantize

from .quant_nets import observe, residual_net, samples


@given(
    hnp.arrays(
        np.int8, hnp.array_shapes(min_dims=0, min_side=0, max_side=7), elements=st.integers(-7, 7)
    )
)
def test_what_is_packed_comes_back(data):
    stored = pack(data)
    assert stored.dtype == np.uint8 and stored.shape == ((data.size + 1) // 2,)
    again = unpack(stored, data.shape)
    assert again.dtype == np.int8
    np.testing.assert_array_equal(again, data)


def test_the_first_number_is_in_the_low_half():
    assert pack(np.array([1, -2, 7], np.int8)).tolist() == [0xE1, 0x07]


def test_numbers_that_four_bits_do_not_hold_are_refused():
    for bad in (-8, 8):
        with pytest.raises(ValueError, match="-7 to 7"):
            pack(np.array([bad], np.int8))


@pytest.mark.parametrize(
    ("data", "shape", "message"),
    [
        (np.zeros(2, np.uint8), [5], "does not hold 5"),
        (np.zeros(2, np.int8), [4], "does not hold 4"),
        (np.zeros((2, 1), np.uint8), [4], "does not hold 4"),
        (np.zeros(2, np.uint8), [1 << 40, 1 << 40], "does not hold"),
        (np.array([0, 0x10], np.uint8), [3], "behind the last"),
        (np.array([0x80], np.uint8), [2], "-7 to 7"),
    ],
)
def test_bytes_that_hold_no_such_tensor_are_refused(data, shape, message):
    with pytest.raises(ValueError, match=message):
        unpack(data, shape)


@pytest.mark.parametrize("shape", [None, "3", [-1], [1.5], [True], [1] * 17, [1 << 41]], ids=str)
def test_a_shape_that_is_none_is_refused(shape):
    graph = residual_net()
    config = CompileConfig.from_data({"bit": {"layerOverrides": {"weight4Bits": ["c1"]}}})
    data = int_graph_to_json(quantize(graph, observe(graph, samples(graph)), config), "body")
    assert data["layers"][0]["packed"] == {"weight": [8, 3, 3, 3]}
    assert "packed" not in data["layers"][1], "files without 4-bit weights are as they were"
    read_int_graph(Fields(data, "graph"), None)
    data["layers"][0]["packed"] = {"weight": shape}
    with pytest.raises(FormatError, match="packed tensor 'weight'"):
        read_int_graph(Fields(data, "graph"), None)
    data["layers"][0]["packed"] = {"nothing": [2]}
    with pytest.raises(FormatError, match="packed tensor 'nothing'"):
        read_int_graph(Fields(data, "graph"), None)
