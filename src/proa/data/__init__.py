"""The nouns: plain typed data that crosses modules, processes and machines."""
