"""Scripts that run in the clients' own environment; tests start them."""

collect_ignore = ["with_inspect.py", "with_openai.py"]
