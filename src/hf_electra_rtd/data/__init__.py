"""From text to batches with masks: documents, tokens, sequences, block files, the training stream, the collator."""
