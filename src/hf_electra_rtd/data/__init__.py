"""From text to batches with masks: documents, tokens, rows, block files, the training stream, the collator."""
