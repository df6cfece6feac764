"""What all rooms use: files, flags, records, and the tables of sizes and tasks."""
