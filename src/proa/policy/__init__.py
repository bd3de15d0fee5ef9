"""The policy: a causal language model, its log-probabilities, its micro-batches and its optimizer."""
