"""Quantization: observers, the plan of integer grids, the integer graph, and its validation."""
