"""Rewrites of the IR, one file a pass; :mod:`qbcompiler.passes.pipeline` is the list."""

from .pipeline import run_pipeline

__all__ = ["run_pipeline"]
