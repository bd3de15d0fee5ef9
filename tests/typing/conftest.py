"""The cases are read by a type checker and never imported."""

collect_ignore = ["right.py", "wrong.py"]
