"""A run from its configuration: loads its parts, wires them together in threads or on Ray, trains, and records how it
ended.
"""
