"""Both networks applied to single sentences."""
