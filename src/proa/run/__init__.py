"""A run from its configuration: its parts are loaded, wired together on threads or on Ray, started, and brought to an
end that its folder tells.
"""
