"""LoRA in the detached loop: only the adapter travels, and makers compute what the trainer computes."""

import torch
from tests.runtime.small_run import SmallRun

from proa.policy.log_probs import action_statistics
from proa.policy.lora import LoraSettings, adapter_weights, base_weights
from proa.policy.models import weights_digest

LORA = LoraSettings(rank=2, alpha=4.0)


def test_after_ten_pushes_sampler_and_trainer_agree_and_the_base_is_as_it_was():
    run = SmallRun(lora=LORA, max_staleness=0, total_steps=11)
    before = weights_digest(base_weights(run.model))
    worst, step = [], run.trainer.training_step

    def checked(experience):
        own = action_statistics(
            run.model, experience.sequences, experience.attention_mask, experience.action_log_probs.shape[1]
        ).log_probs_BA
        worst.append(float((own - experience.action_log_probs)[experience.action_mask].abs().max().detach()))
        return step(experience)

    run.trainer.training_step = checked
    run.run(2)
    assert len(worst) == 11
    assert max(worst) < 1e-4
    assert weights_digest(base_weights(run.model)) == before
    moved = max(float(weight.abs().max()) for name, weight in adapter_weights(run.model).items() if "lora_B" in name)
    assert moved > 1e-3  # the adapter did learn


def test_what_is_published_is_the_adapter_and_nothing_else():
    run = SmallRun(lora=LORA)
    sent, publish = [], run.store.publish

    def counted(version, tensors, *probe):
        sent.append(sum(tensor.nbytes for tensor in tensors.values()))
        return publish(version, tensors, *probe)

    run.store.publish = counted
    run.run()
    adapter = sum(tensor.nbytes for tensor in adapter_weights(run.model).values())
    whole = sum(tensor.nbytes for tensor in base_weights(run.model).values())
    assert sent == [adapter] * 5
    assert adapter < whole / 2


def test_the_reference_is_the_base_and_holds_no_copy():
    run = SmallRun(lora=LORA, kl=0.1)
    with run.trainer.learner._reference.active() as reference:
        assert reference is run.model
        tokens = torch.tensor([[6, 7, 8, 3]])
        alone = SmallRun().model(tokens).logits
        assert torch.equal(reference(tokens).logits, alone)
