"""Plain typed data that crosses modules, processes and machines."""
