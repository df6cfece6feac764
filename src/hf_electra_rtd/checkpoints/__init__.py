"""Checkpoints of other implementations."""
