"""Fine-tuning: tasks as data, how each kind of task is encoded, decoded and scored, and runs with records."""
