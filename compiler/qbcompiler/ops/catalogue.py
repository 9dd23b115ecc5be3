"""The explicit list of built-in operators, in order of preference."""

from __future__ import annotations

from typing import Any

from .activation import Clip, Hardtanh, PRelu, Relu
from .arithmetic import Adding, Div, Multiply, Sub
from .arithmetic_const import (
    AddingConstant,
    Batchnorm,
    DivConstant,
    MultiplyConstant,
    Neg,
    SubConstant,
)
from .conv import Convolution, Convolution3d, DepthwiseConvolution, GroupConvolution
from .conv_transpose import TransposeConvolution
from .functions import FUNCTIONS
from .logic import Logical, TensorCmp, Where
from .matmul import MatMul
from .normalization import (
    GroupNormalization,
    InstanceNormalization,
    LayerNormalization,
    RmsNormalization,
)
from .onnx_layer import OnnxLayer
from .pad import Pad
from .pooling import GlobalAveragePooling, Pooling
from .recurrent import GRU, LSTM, RNN
from .reduce import ReduceL2, ReduceMax, ReduceMean, ReduceMin, ReduceProd, ReduceSum
from .resize import Resize
from .rotary import RotaryEmbedding
from .shapes import Cast, Expand, Identity, Reshape, Transpose, Unsqueeze
from .slicing import Concatenate, Gather, Slice
from .softmax import LogSoftmax, Softmax
from .spec import OpSpec
from .unary import ACTIVATIONS
from .views import HeaderView, HeaderViewRevert, OrderedPatchify, PixelShuffle

__all__ = ["SPECS"]

SPECS: list[OpSpec[Any]] = [
    DepthwiseConvolution(),
    GroupConvolution(),
    Convolution(),
    Convolution3d(),
    TransposeConvolution(),
    MatMul(),
    LSTM(),
    GRU(),
    RNN(),
    Batchnorm(),
    AddingConstant(),
    Adding(),
    SubConstant(),
    Sub(),
    MultiplyConstant(),
    Multiply(),
    DivConstant(),
    Div(),
    Neg(),
    Relu(),
    Hardtanh(),
    Clip(),
    PRelu(),
    *ACTIVATIONS,
    *FUNCTIONS,
    RotaryEmbedding(),
    Softmax(),
    LogSoftmax(),
    LayerNormalization(),
    RmsNormalization(),
    InstanceNormalization(),
    GroupNormalization(),
    Pooling(),
    GlobalAveragePooling(),
    ReduceMean(),
    ReduceSum(),
    ReduceMax(),
    ReduceMin(),
    ReduceProd(),
    ReduceL2(),
    Resize(),
    Pad(),
    Concatenate(),
    Slice(),
    Gather(),
    Reshape(),
    Unsqueeze(),
    Transpose(),
    HeaderView(),
    HeaderViewRevert(),
    PixelShuffle(),
    OrderedPatchify(),
    Expand(),
    Identity(),
    Cast(),
    TensorCmp(),
    Logical(),
    Where(),
    OnnxLayer(),
]
