"""From records to tables, pictures, model cards, and the Hub. Reads records and files, never models."""
