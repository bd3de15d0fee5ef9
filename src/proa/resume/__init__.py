"""What a checkpoint of a run holds, and how the run continues from one: its inputs, its configuration, its record."""
