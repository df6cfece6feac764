"""A generator and a discriminator: their configuration, model, objectives, and how they are found and loaded."""
