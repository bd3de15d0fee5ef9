"""From a batch of experience to one optimizer step: micro-batches, optimizer, and several trainers as one."""
