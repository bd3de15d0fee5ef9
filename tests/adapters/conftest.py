"""Modules that need packages which may not be installed; what uses them is skipped then."""

collect_ignore = ["real_gymnasium.py", "real_openenv.py"]
