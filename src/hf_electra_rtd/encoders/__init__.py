"""One interface for all families of encoders."""
