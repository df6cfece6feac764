"""How each kind of task becomes batches, and how a model's outputs become answers."""
