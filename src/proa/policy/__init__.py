"""The policy and related models: loading, log-probabilities, adapters, critic, reference, reward model."""
