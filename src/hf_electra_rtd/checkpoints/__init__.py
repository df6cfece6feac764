"""Checkpoints of other makes."""
