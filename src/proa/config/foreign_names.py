"""What settings of TRL, transformers, verl and OpenRLHF are called here."""

from __future__ import annotations

from .reference import settings

_BATCH = "train_batch_size is the number of samples of an optimizer step, over all trainers"
_NAMES = {
    # transformers and TRL
    "num_generations": "sampling.group_size",
    "max_completion_length": "sampling.max_new_tokens",
    "stop_strings": "sampling.stop",
    "reward_funcs": "reward, e.g. my_module:my_reward",
    "reward_weights": "reward.weights",
    "environment_factory": "environment, a class or its dotted path",
    "max_tool_calling_iterations": "environment.max_turns, of the model, the last one included",
    "rollout_func": "agent, a function that talks to the model through an endpoint",
    "train_dataset": "task",
    "dataset_name": "task",
    "eval_dataset": "eval, a list: [{name: held_out, source: FILE}]",
    "processing_class": "model.tokenizer",
    "chat_template_path": "task.chat_template",
    "model_name_or_path": "model.path",
    "per_device_train_batch_size": f"train_batch_size: {_BATCH}",
    "generation_batch_size": f"train_batch_size: {_BATCH}",
    "gradient_accumulation_steps": "optimizer.token_budget, the tokens of a micro-batch, whatever its size",
    "num_train_epochs": "epochs",
    "max_steps": "total_steps, the number of batches",
    "num_iterations": "train_epochs",
    "steps_per_generation": "update_steps",
    "beta": "algorithm.params: {kl_coefficient: …}, or for dpo {beta: …}",
    "epsilon_low": "algorithm.params: {clip_low: …}",
    "epsilon_high": "algorithm.params: {clip_high: …}",
    "loss_type": "algorithm, e.g. algorithm: dapo",
    "scale_rewards": "algorithm: dr_grpo does not divide by the standard deviation",
    "lr_scheduler_type": "optimizer.schedule",
    "warmup_ratio": "optimizer.warmup_steps, a number of steps",
    "adam_beta1": "optimizer.betas, e.g. [0.9, 0.999]",
    "adam_beta2": "optimizer.betas, e.g. [0.9, 0.999]",
    "adam_epsilon": "optimizer.epsilon",
    "optim": "optimizer.kind",
    "bf16": "model.dtype: bfloat16",
    "fp16": "model.dtype: bfloat16; float16 is not trained in",
    "torch_dtype": "model.dtype",
    "torch_compile": "model.compile",
    "attn_implementation": "model.attention",
    "use_vllm": "engine.kind",
    "save_steps": "checkpoint.save_every",
    "save_total_limit": "checkpoint.keep",
    "load_best_model_at_end": "checkpoint.best, a metric",
    "eval_steps": "run_every of an eval: [{name: held_out, run_every: 50}]",
    "logging_steps": "record: every step is recorded",
    "report_to": "callbacks: [wandb], or tensorboard, trackio",
    "run_name": "name",
    "resume_from_checkpoint": "the command proa resume RUN_DIR",
    "peft_config": "lora: {rank: 16}",
    "lora_r": "lora.rank",
    "lora_alpha": "lora.alpha",
    "lora_target_modules": "lora.target_modules",
    # verl and OpenRLHF
    "rollout_n": "sampling.group_size",
    "n_samples_per_prompt": "sampling.group_size",
    "max_response_length": "sampling.max_new_tokens",
    "generate_max_len": "sampling.max_new_tokens",
    "ppo_mini_batch_size": f"train_batch_size: {_BATCH}",
    "ppo_epochs": "train_epochs",
    "total_epochs": "epochs",
    "kl_coef": "algorithm.params: {kl_coefficient: …}",
    "kl_loss_coef": "algorithm.params: {kl_coefficient: …}",
    "init_kl_coef": "algorithm.params: {kl_coefficient: …}",
    "clip_ratio": "algorithm.params: {clip_low: …, clip_high: …}",
    "entropy_coeff": "algorithm.params: {entropy_coefficient: …}",
    "actor_learning_rate": "optimizer.learning_rate",
    "critic_learning_rate": "critic.learning_rate",
    "adv_estimator": "algorithm, e.g. algorithm: rloo",
    "pretrain": "model.path",
    "prompt_data": "task",
    "n_gpus_per_node": "ray.trainer and ray.maker, e.g. {num_gpus: 1}",
}


def name_here(foreign: str) -> str | None:
    """What a setting of another library is called here, or in which section one of ours is; None if nobody knows it.

    >>> name_here("num_generations"), name_here("group_size"), name_here("colour")
    ('sampling.group_size', 'sampling.group_size', None)
    """
    if foreign in _NAMES:
        return _NAMES[foreign]
    ours = [one.key for one in settings() if one.key.split(".")[-1] == foreign and "[]" not in one.key]
    return " or ".join(ours) or None
