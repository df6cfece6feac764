"""Helpers for all subpackages: files, flags, records, and the tables of sizes and tasks."""
