"""Rewrites of the IR, one file a pass; :mod:`qbcompiler.passes.pipeline` is the list."""
