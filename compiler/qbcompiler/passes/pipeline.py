"""The rewrites of the float graph, in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..ir import Graph, verify
from ..ops import Registry
from .base import GraphPass, PassResult
from .cancel_moves import CancelMoves
from .common_subexpressions import CommonSubexpressions
from .dead_code import DeadCode
from .drop_expands import DropExpands
from .drop_guards import DropNanGuards
from .fold_affine import FoldAffineAfter, FoldAffineBefore
from .fold_constants import FoldConstants
from .fold_pads import FoldPads
from .fold_scale_through_moves import FoldScaleThroughMoves
from .fuse_gelu import FuseGelu
from .fuse_group_norm import FuseGroupNorm
from .fuse_hard_sigmoid import FuseHardSigmoid
from .fuse_hard_swish import FuseHardSwish
from .fuse_mish import FuseMish, FuseSoftplus
from .fuse_norm import FuseLayerNorm, FuseRmsNorm
from .fuse_qdq import FuseQdq
from .fuse_rotary import FuseRotary
from .fuse_softmax import FuseSoftmax
from .fuse_swish import FuseSwish
from .fuse_views import FuseBlocks, FuseHeaderView, FuseHeaderViewRevert, FusePatches
from .merge_affine import MergeAffine
from .merge_clips import MergeClips
from .merge_slices import MergeSlices
from .normalize_reductions import KeepReducedDims, SumToMean
from .sink_reshapes import SinkReshapes
from .split_heads import SplitHeads
from .split_linear import SplitLinear

__all__ = ["PIPELINE", "run_pipeline"]

PIPELINE: tuple[GraphPass, ...] = (
    FoldConstants(),
    FuseQdq(),
    DeadCode(),
    CommonSubexpressions(),
    SplitHeads(),
    SinkReshapes(),
    CancelMoves(),
    MergeSlices(),
    DropExpands(),
    DropNanGuards(),
    FuseRotary(),
    SumToMean(),
    KeepReducedDims(),
    FuseSoftmax(),
    FuseLayerNorm(),
    FuseRmsNorm(),
    FuseGroupNorm(),
    MergeClips(),
    FuseHardSigmoid(),
    FuseHardSwish(),
    FuseSwish(),
    FuseGelu(),
    FuseSoftplus(),
    FuseMish(),
    FoldPads(),
    FoldAffineAfter(),
    FoldAffineBefore(),
    SplitLinear(),
    FoldScaleThroughMoves(),
    MergeAffine(),
    FuseHeaderView(),
    FuseHeaderViewRevert(),
    FuseBlocks(),
    FusePatches(),
    DeadCode("final_dead_code"),
)


def run_pipeline(
    graph: Graph,
    registry: Registry,
    passes: Sequence[GraphPass] = PIPELINE,
    *,
    after: Callable[[], None] | None = None,
) -> list[PassResult]:
    """Run ``passes`` on ``graph`` in place, verify it after each, then call ``after``.

    Raises:
        ValueError: a pass comes before one that it requires, or two have one name.
        VerifyError: a pass broke the graph.
    """
    done: list[str] = []
    results: list[PassResult] = []
    for step in passes:
        missing = [r for r in step.requires if r not in done]
        if missing or step.name in done:
            raise ValueError(f"pass {step.name!r} is listed twice or before {missing}")
        done.append(step.name)
        if not all(op in registry for op in step.needs):
            continue
        result = step.run(graph, registry)
        if result.count:
            verify(graph, "simplified", registry.infer)
        if after is not None:
            after()
        step.ensures(graph)
        results.append(result)
    return results
