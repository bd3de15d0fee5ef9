"""Measurements that users can repeat on their own machine: `proa bench`."""
