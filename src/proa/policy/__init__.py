"""The policy and the models beside it: loading, log-probabilities, adapters, critic, reference, reward model."""
