"""Training on data as it is: supervised fine-tuning, DPO, reward models."""
