"""What settings of TRL, transformers, verl and OpenRLHF are called here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .algorithm_settings import PARAMS, algorithm_settings
from .reference import settings

_BATCH = "train_batch_size: the samples of an optimizer step, over all trainers"
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
    "per_device_train_batch_size": _BATCH,
    "generation_batch_size": _BATCH,
    "gradient_accumulation_steps": "optimizer.token_budget, the tokens of a micro-batch, whatever its size",
    "num_train_epochs": "epochs",
    "max_steps": "total_steps, the number of batches",
    "num_iterations": "train_epochs",
    "steps_per_generation": "update_steps",
    "beta": "algorithm.params: {kl_coefficient: …}, or for dpo {beta: …}",
    "epsilon": "algorithm.params: {clip_low: …, clip_high: …}; AdamW's is optimizer.epsilon",
    "epsilon_low": "algorithm.params: {clip_low: …}",
    "epsilon_high": "algorithm.params: {clip_high: …}",
    "entropy_coef": "algorithm.params: {entropy_coefficient: …}",
    "importance_sampling_level": "algorithm: gspo, which has one ratio for a sequence",
    "vllm_importance_sampling_correction": "algorithm.old: trainer",
    "vllm_importance_sampling_cap": "algorithm.importance_cap, with algorithm.old: trainer",
    "loss_type": "algorithm, e.g. algorithm: dapo",
    "scale_rewards": "algorithm: dr_grpo does not divide by the standard deviation",
    "max_prompt_length": "task.overlong, which says what becomes of prompts that do not fit",
    "max_length": "algorithm.params: {max_length: …} of sft, dpo and reward_model; task.overlong is about longer rows",
    "max_seq_length": "algorithm.params: {max_length: …} of sft; task.overlong says what becomes of longer rows",
    "truncation_mode": "task.overlong",
    "packing": "algorithm.params: {packing: true} of sft",
    "completion_only_loss": "algorithm.params: {train_on_prompt: …} of sft; by default it is false",
    "assistant_only_loss": "algorithm.params: {every_answer: true} of sft; by default the last answer is learned",
    "dataset_text_field": "task.columns: {text: NAME}",
    "dataset_config": "task: hf:NAME?config=main",
    "dataset_train_split": "task.split",
    "label_smoothing": "algorithm.params: {label_smoothing: …} of dpo",
    "reference_free": "algorithm.params: {reference_free: true} of dpo",
    "learning_rate": "optimizer.learning_rate",
    "lr": "optimizer.learning_rate",
    "lr_scheduler_kwargs": "optimizer.schedule and optimizer.warmup_steps",
    "optimizers": "optimizer",
    "batch_size": _BATCH,
    "data_seed": "seed",
    "dtype": "model.dtype",
    "model_revision": "model: NAME@REVISION",
    "policy": "model",
    "sft_model_path": "model.path",
    "value_model": "critic: {kind: separate, path: FOLDER}",
    "reward_model": "reward: {model: FOLDER}",
    "reward_model_path": "reward.model.path",
    "total_episodes": "total_steps, the number of batches of train_batch_size samples",
    "mask_truncated_completions": "algorithm: dapo with params: {overlong_buffer: …}, which lowers their rewards",
    "formatting_func": "task.columns",
    "compute_metrics": "metric of an eval: [{name: held_out, metric: my_module:exact}]",
    "dataset_test_split": "split of an eval: [{name: held_out, split: test}]",
    "gradient_checkpointing_kwargs": "model.gradient_checkpointing",
    "logging_dir": "output_dir; the folder of a run has everything that it logs",
    "logging_strategy": "record: every step is recorded",
    "vllm_mode": "engine: vllm, or engine.address for a server that runs",
    "vllm_server_base_url": "engine.address, with engine.kind: vllm",
    "vllm_gpu_memory_utilization": "engine.options: {gpu_memory_utilization: …} of vllm",
    "num_processes": "trainers, with runtime: ray",
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
    "metric_for_best_model": "checkpoint.best",
    "greater_is_better": "checkpoint.mode: max",
    "save_strategy": "checkpoint.save_every, a number of steps",
    "eval_strategy": "run_every of an eval: [{name: held_out, run_every: 50}]",
    "eval_on_start": "baseline of an eval, which is true by default",
    "eval_steps": "run_every of an eval: [{name: held_out, run_every: 50}]",
    "logging_steps": "record: every step is recorded",
    "log_completions": "record.rollouts, how many of a step are kept",
    "disable_tqdm": "progress: false",
    "use_cpu": "model.device: cpu",
    "full_determinism": "deterministic, which is true by default",
    "overwrite_output_dir": "the flag --overwrite; in Python overwrite=True",
    "model_init_kwargs": "model, a section: proa config model",
    "generation_kwargs": "sampling, a section: proa config sampling",
    "report_to": "callbacks: [wandb], or tensorboard, trackio",
    "run_name": "name",
    "resume_from_checkpoint": "the command proa resume RUN_DIR",
    "peft_config": "lora: {rank: 16}",
    "use_peft": "lora: {rank: 16}",
    "lora_r": "lora.rank",
    "lora_alpha": "lora.alpha",
    "lora_target_modules": "lora.target_modules",
    # verl and OpenRLHF
    "rollout_n": "sampling.group_size",
    "n_samples_per_prompt": "sampling.group_size",
    "max_response_length": "sampling.max_new_tokens",
    "generate_max_len": "sampling.max_new_tokens",
    "ppo_mini_batch_size": _BATCH,
    "response_length": "sampling.max_new_tokens",
    "ppo_epochs": "train_epochs",
    "num_ppo_epochs": "train_epochs",
    "cliprange": "algorithm.params: {clip_low: …, clip_high: …}",
    "cliprange_value": "algorithm.params: {value_clip: …} of ppo",
    "vf_coef": "algorithm.params: {value_coefficient: …} of ppo",
    "gamma": "algorithm.params: {gamma: …} of ppo",
    "lam": "algorithm.params: {lam: …} of ppo",
    "whiten_rewards": "algorithm.params: {whiten: …} of ppo, which whitens advantages",
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
    "n": "sampling.group_size",
    "train_files": "task",
    "val_files": "eval, a list: [{name: held_out, source: FILE}]",
    "prompt_key": "task.columns: {prompt: NAME}",
    "use_kl_loss": "algorithm.params: {kl_coefficient: …}",
    "use_kl_in_reward": "algorithm.params: {kl_reward_coefficient: …} of ppo and reinforce_pp",
    "ppo_micro_batch_size_per_gpu": "optimizer.token_budget, the tokens of a micro-batch",
    "gpu_memory_utilization": "engine.options: {gpu_memory_utilization: …} of vllm",
    "save_freq": "checkpoint.save_every",
    "test_freq": "run_every of an eval: [{name: held_out, run_every: 50}]",
    "total_training_steps": "total_steps",
    "project_name": "callbacks: [{kind: wandb, params: {project: NAME}}]",
    "experiment_name": "name",
    "logger": "callbacks: [wandb], or tensorboard, trackio",
}
_NEEDLESS = {
    "args": "the settings of GRPOConfig and the like are arguments themselves",
    "ref_model": "the reference is the model that the run starts from",
    "disable_dropout": "there is no dropout",
    "lora_dropout": "there is no dropout",
    "shuffle_dataset": "prompts come in an order that follows from seed",
    "remove_unused_columns": "a reward is given the columns that it names",
    "per_device_eval_batch_size": "evals decode as many at once as there is room for",
    "dataloader_num_workers": "all rows are tokenised before the first step",
    "do_train": "the verb is: proa train, proa eval",
    "do_eval": "an eval in the list eval is carried out",
    "push_to_hub": "model/ in the run's folder is what hf upload takes",
    "hub_model_id": "model/ in the run's folder is what hf upload takes",
}
"""Why there is nothing like it here."""


def name_here(foreign: str) -> str | None:
    """What a setting of another library is called here, or in which section one of ours is; None if nobody knows it.

    >>> name_here("num_generations"), name_here("group_size"), name_here("colour")
    ('here it is sampling.group_size', 'here it is sampling.group_size', None)
    >>> name_here("ref_model")
    'it is not needed: the reference is the model that the run starts from'
    """
    if foreign in _NAMES:
        return f"here it is {_NAMES[foreign]}"
    if foreign in _NEEDLESS:
        return f"it is not needed: {_NEEDLESS[foreign]}"
    if any(foreign == one.name for one in algorithm_settings()):
        return f"here it is {PARAMS}: {{{foreign}: …}}"
    ours = [one.key for one in settings() if one.key.split(".")[-1] == foreign and "[]" not in one.key]
    return f"here it is {' or '.join(ours)}" if ours else None


def names_inside(section: str, content: Any) -> list[str]:
    """What the keys of another library's section are here, as far as that is known.

    >>> names_inside("actor_rollout_ref", {"rollout": {"n": 8}})
    ['actor_rollout_ref.rollout.n: here it is sampling.group_size']
    """
    ours = {one.key for one in settings()}
    found = []
    for dotted in _leaves(section, content):
        parts = dotted.split(".")
        ends = [".".join(parts[start:]) for start in range(1, len(parts))]
        alike = [*ends, f"sampling.{parts[-1]}", f"optimizer.{parts[-1]}"]
        same = next((key for key in alike if key in ours), None)
        if same is not None:
            found.append(f"{dotted}: here it is {same}")
        elif parts[-1] in _NAMES:
            found.append(f"{dotted}: here it is {_NAMES[parts[-1]]}")
    return found


def _leaves(dotted: str, content: Any) -> Iterator[str]:
    if not isinstance(content, Mapping):
        yield dotted
        return
    for key, value in content.items():
        yield from _leaves(f"{dotted}.{key}", value)
