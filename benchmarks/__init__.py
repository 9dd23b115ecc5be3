"""Measurements that are run by hand; see docs/performance.md."""
