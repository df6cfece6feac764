"""What people see of a run, made from its record alone."""
