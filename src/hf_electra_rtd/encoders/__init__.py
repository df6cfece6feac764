"""What differs between families of encoders, made alike."""
