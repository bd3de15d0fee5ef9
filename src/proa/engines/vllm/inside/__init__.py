"""What runs within vLLM's workers; it needs vLLM to be imported."""
