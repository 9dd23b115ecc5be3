"""The two files, MBLT and MXQ: one deterministic container, read lazily and defensively.

The layout is specified in ``docs/formats.md``.
"""
