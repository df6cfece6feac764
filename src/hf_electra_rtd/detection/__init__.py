"""The towers at work on sentences that a person gives."""
