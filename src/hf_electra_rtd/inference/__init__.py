"""Uses of a trained model: detection, correction, scores of texts, export."""
