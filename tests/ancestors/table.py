"""Everything that the three ancestors document, statement by statement, with the test that proves it.

A statement is in our own words. A proof is a test, in the page's own file unless another is named; with a parameter in
brackets it is that case alone. Where Proa does something else, or says more exactly what it does, the third text is the
title of the reason in docs/ancestors.md. `test_table.py` checks all of this.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Item:
    ancestor: str
    statement: str
    proof: str
    """The id of a test."""
    differs: str | None = None
    """The title of a reason."""


EXAMPLES = "tests/ancestors/test_documented_examples.py::"
LOGGER = "tests/ancestors/test_one_logger.py::"
BY_HAND = "tests/roles/test_by_hand.py::"
RAY = "tests/integration/test_documented_actors.py::"
RAY_BY_HAND = "tests/integration/test_by_hand_ray.py::"
RAY_RUN = "tests/integration/test_ray_run.py::"
RAY_SEEN = "tests/integration/test_ray_seen.py::"

TRAINER_AND_MAKER_CALLBACKS = [
    ("a trainer's callback has hooks around fit", "test_a_trainer_has_a_start_and_an_end_of[fit]"),
    ("a trainer's callback has hooks around an episode", "test_a_trainer_has_a_start_and_an_end_of[episode]"),
    ("a trainer's callback has hooks around an epoch", "test_a_trainer_has_a_start_and_an_end_of[epoch]"),
    ("a trainer's callback has hooks around a batch", "test_a_trainer_has_a_start_and_an_end_of[batch]"),
    (
        "a trainer's callback has hooks around an update of the makers",
        "test_a_trainer_has_a_start_and_an_end_of[update]",
    ),
    ("a maker's callback has hooks around its loop", "test_a_maker_has_a_start_and_an_end_of[loop]"),
    (
        "a maker's callback has hooks around making experience",
        "test_a_maker_has_a_start_and_an_end_of[make_experience]",
    ),
    ("a maker's callback has hooks around sending it", "test_a_maker_has_a_start_and_an_end_of[send]"),
    ("a maker's callback has hooks around one of its batches", "test_a_maker_has_a_start_and_an_end_of[batch]"),
    ("TrainerCallback is an ABC", "test_a_base_is_an_abc_of_which_nothing_must_be_overridden[TrainerCallback]"),
    ("MakerCallback is an ABC", "test_a_base_is_an_abc_of_which_nothing_must_be_overridden[MakerCallback]"),
    ("all hooks of TrainerCallback do nothing by default", "test_what_is_not_overridden_does_nothing[TrainerCallback]"),
    ("all hooks of MakerCallback do nothing by default", "test_what_is_not_overridden_does_nothing[MakerCallback]"),
    (
        "a subclass of TrainerCallback has just the hooks that it needs",
        "test_a_subclass_overrides_the_hooks_that_it_needs_and_only_these_are_called[TrainerCallback]",
    ),
    (
        "a subclass of MakerCallback has just the hooks that it needs",
        "test_a_subclass_overrides_the_hooks_that_it_needs_and_only_these_are_called[MakerCallback]",
    ),
    (
        "a TrainerCallback serves a detached trainer, on Ray",
        f"{RAY}test_a_users_trainer_is_found_by_name_and_fed_by_several_at_once",
    ),
    ("a MakerCallback serves an experience maker holder", "test_a_maker_callback_serves_a_holder"),
    ("both live in the actors of a run on Ray", f"{RAY_RUN}test_callbacks_of_trainers_and_makers_live_in_their_actors"),
    ("TrainerCallback.on_fit_start() -> None", "test_the_signature_of_a_trainers[on_fit_start]"),
    ("TrainerCallback.on_fit_end() -> None", "test_the_signature_of_a_trainers[on_fit_end]"),
    ("TrainerCallback.on_episode_start(episode: int) -> None", "test_the_signature_of_a_trainers[on_episode_start]"),
    ("TrainerCallback.on_episode_end(episode: int) -> None", "test_the_signature_of_a_trainers[on_episode_end]"),
    ("TrainerCallback.on_epoch_start(epoch: int) -> None", "test_the_signature_of_a_trainers[on_epoch_start]"),
    ("TrainerCallback.on_epoch_end(epoch: int) -> None", "test_the_signature_of_a_trainers[on_epoch_end]"),
    ("TrainerCallback.on_batch_start() -> None", "test_the_signature_of_a_trainers[on_batch_start]"),
    (
        "TrainerCallback.on_batch_end(metrics: dict, experience: Experience) -> None",
        "test_the_signature_of_a_trainers[on_batch_end]",
    ),
    ("TrainerCallback.on_update_start() -> None", "test_the_signature_of_a_trainers[on_update_start]"),
    ("TrainerCallback.on_update_end() -> None", "test_the_signature_of_a_trainers[on_update_end]"),
    ("MakerCallback.on_loop_start() -> None", "test_the_signature_of_a_makers[on_loop_start]"),
    ("MakerCallback.on_loop_end() -> None", "test_the_signature_of_a_makers[on_loop_end]"),
    ("MakerCallback.on_make_experience_start() -> None", "test_the_signature_of_a_makers[on_make_experience_start]"),
    (
        "MakerCallback.on_make_experience_end(experience: Experience) -> None",
        "test_the_signature_of_a_makers[on_make_experience_end]",
    ),
    ("MakerCallback.on_send_start() -> None", "test_the_signature_of_a_makers[on_send_start]"),
    ("MakerCallback.on_send_end() -> None", "test_the_signature_of_a_makers[on_send_end]"),
    ("MakerCallback.on_batch_start() -> None", "test_the_signature_of_a_makers[on_batch_start]"),
    ("MakerCallback.on_batch_end() -> None", "test_the_signature_of_a_makers[on_batch_end]"),
    ("both bases are imported from one module", "test_both_bases_are_imported_from_one_place"),
    (
        "on_episode_start and on_episode_end are given the index of the episode",
        "test_episodes_are_counted_by_whole_numbers_from_0",
    ),
    (
        "on_epoch_start and on_epoch_end are given the index of the epoch",
        "test_epochs_are_counted_by_whole_numbers_from_0_in_each_episode",
    ),
    (
        "on_batch_end is given the metrics of training as a dict",
        "test_the_end_of_a_batch_has_its_metrics",
        "Metrics of a step",
    ),
    ("on_batch_end is given the experience of the batch", "test_the_end_of_a_batch_has_its_experience"),
    (
        "every on_batch_end has metrics and experience",
        "test_a_step_that_fails_ends_without_metrics",
        "A step that is cut short",
    ),
    (
        "on_make_experience_end is given the experience that was made",
        "test_the_end_of_making_has_the_experience_that_was_made",
    ),
    ("no hook of a trainer's callback returns anything", "test_every_hook_returns_none[TrainerCallback]"),
    ("no hook of a maker's callback returns anything", "test_every_hook_returns_none[MakerCallback]"),
    (
        "the example class LoggingCallback prints metrics and the end",
        f"{EXAMPLES}test_the_logging_callback_of_the_detached_trainer",
    ),
    ("LoggingCallback works in a local run", f"{EXAMPLES}test_the_logging_callback_in_a_local_run"),
    (
        "LoggingCallback works on a trainer of one's own",
        f"{EXAMPLES}test_the_logging_callback_on_a_trainer_of_ones_own",
    ),
    (
        "LoggingCallback works on Ray, and what it prints is seen",
        f"{RAY_SEEN}test_what_the_documented_callback_prints_in_the_trainer_is_in_the_drivers_output",
    ),
]

DETACHED_TRAINER = [
    ("DetachedTrainer is an abstract base class", "test_it_is_an_abstract_base_class"),
    ("it trains while makers are actors of their own", f"{RAY_BY_HAND}test_makers_follow_and_rewards_rise"),
    (
        "it has the loop of training; a subclass adds the step",
        "test_fit_trains_so_many_fresh_batches_so_often_and_returns_nothing",
    ),
    ("it manages a DetachedReplayBuffer", "test_it_holds_a_detached_replay_buffer"),
    (
        "the buffer receives what ExperienceMakerHolders send",
        f"{BY_HAND}test_makers_follow_the_weights_that_their_trainers_push",
    ),
    ("remote holders send to it", f"{RAY_BY_HAND}test_makers_follow_and_rewards_rise"),
    (
        "a warm-up takes fresh experience, and further epochs go over it again",
        "test_the_first_epoch_of_an_episode_takes_fresh_batches_and_the_others_the_same_again",
    ),
    ("buffer_append is a Ray method with a concurrency group", "test_the_concurrency_group_of[buffer_append]"),
    ("buffer_extend is a Ray method with a concurrency group", "test_the_concurrency_group_of[buffer_extend]"),
    ("buffer_get_length is a Ray method with a concurrency group", "test_the_concurrency_group_of[buffer_get_length]"),
    ("_buffer_sample is a Ray method with a concurrency group", "test_the_concurrency_group_of[_buffer_sample]"),
    (
        "several may use the buffer at once, safely",
        "tests/roles/test_trainer.py::test_producers_in_several_threads_feed_it_and_it_waits_for_them",
    ),
    (
        "several actors may use it at once while fit runs",
        f"{RAY}test_a_users_trainer_is_found_by_name_and_fed_by_several_at_once",
    ),
    (
        "it finds makers by their names as Ray's actors",
        f"{RAY_BY_HAND}test_makers_follow_and_rewards_rise",
    ),
    ("a name that no actor has is an error", f"{RAY}test_a_name_that_is_not_there_is_told_as_such"),
    ("it sends new weights to them", f"{BY_HAND}test_makers_follow_the_weights_that_their_trainers_push"),
    (
        "the hooks of fit, episode, epoch, batch and update fire around what they are named after",
        "test_hooks_fire_in_the_order_of_the_loop",
    ),
    (
        "a subclass without training_step cannot be made",
        "test_a_subclass_without_this_method_cannot_be_made[training_step]",
    ),
    (
        "a subclass without _update_remote_makers cannot be made",
        "test_a_subclass_without_this_method_cannot_be_made[_update_remote_makers]",
    ),
    ("these two are all that a subclass must have", "test_training_step_and_update_are_abstract"),
    ("an algorithm, such as PPO, is a subclass", "test_an_algorithm_is_a_subclass"),
    ("PPO as a subclass trains as an actor with its makers", f"{RAY_BY_HAND}test_makers_follow_and_rewards_rise"),
    (
        "a subclass is decorated with ray.remote and its concurrency groups",
        f"{RAY}test_a_users_trainer_is_found_by_name_and_fed_by_several_at_once",
    ),
    (
        "it is deployed under a name, by which makers find it and push experience",
        f"{RAY_BY_HAND}test_makers_follow_and_rewards_rise",
    ),
    (
        "parameter experience_maker_holder_name_list: list of str, required",
        "test_a_parameter_of_the_constructor[experience_maker_holder_name_list]",
    ),
    ("parameter train_batch_size: int = 8", "test_a_parameter_of_the_constructor[train_batch_size]"),
    ("parameter buffer_limit: int = 0", "test_a_parameter_of_the_constructor[buffer_limit]"),
    ("parameter dataloader_pin_memory: bool = True", "test_a_parameter_of_the_constructor[dataloader_pin_memory]"),
    ("parameter callbacks: list = []", "test_a_parameter_of_the_constructor[callbacks]", "No callbacks by default"),
    ("parameter debug: bool = False", "test_a_parameter_of_the_constructor[debug]"),
    ("_update_remote_makers(fully_update=False, **kwargs), abstract", "test_the_signature_of[_update_remote_makers]"),
    ("training_step(experience) -> dict, abstract", "test_the_signature_of[training_step]"),
    ("fit(total_steps, update_steps, train_epochs=1) -> None", "test_the_signature_of[fit]"),
    ("sync_models_to_remote_makers(**kwargs)", "test_the_signature_of[sync_models_to_remote_makers]"),
    ("buffer_get_length()", "test_the_signature_of[buffer_get_length]"),
    ("buffer_append(experience)", "test_the_signature_of[buffer_append]"),
    ("buffer_extend(items: list of BufferItem)", "test_the_signature_of[buffer_extend]"),
    ("_buffer_sample()", "test_the_signature_of[_buffer_sample]"),
    ("it is imported from one module", "test_it_is_imported_from_one_place"),
    ("the list has the names of actors that are makers", "test_names_of_makers_are_for_whoever_pushes"),
    ("train_batch_size is the size of a training batch", "test_a_batch_has_exactly_as_many_samples_as_was_said"),
    ("buffer_limit is the most that the buffer takes", "test_a_limit_holds_back_who_sends_more"),
    ("buffer_limit 0 means no limit", "test_a_limit_of_0_is_none"),
    (
        "dataloader_pin_memory says whether memory is pinned",
        "test_batches_are_pinned_if_that_is_said_and_there_is_a_gpu",
        "Pinned memory",
    ),
    ("callbacks is a list of instances", "test_callbacks_are_a_list_of_instances"),
    ("debug turns on debug output", "test_steps_and_pushes_are_logged_if_that_is_said"),
    ("buffer_append adds a batch of experience", "test_append_takes_a_batch_of_experience"),
    ("buffer_extend adds a list of items", "test_extend_takes_items"),
    ("_buffer_sample takes a batch out", "test_a_sample_is_a_batch_in_order_of_arrival"),
    (
        "what training_step returns are the metrics of training",
        "test_what_training_step_returns_are_the_metrics",
        "Metrics of a step",
    ),
    ("buffer_get_length is the number of batches, an int", "test_its_length_is_in_batches"),
    (
        "update_steps is how often weights go to the makers",
        "test_weights_are_pushed_after_every_update_steps_fresh_batches",
    ),
    ("train_epochs is 1 unless said otherwise", "test_one_epoch_is_the_default"),
    (
        "sync_models_to_remote_makers sends the whole models, with the given arguments",
        "test_syncing_pushes_all_with_what_it_was_given",
    ),
    (
        "the example's class, options and call of fit work on Ray",
        f"{RAY}test_a_users_trainer_is_found_by_name_and_fed_by_several_at_once",
    ),
    (
        "the example's fit(total_steps=1000, update_steps=100, train_epochs=2) trains that much",
        "test_fit_trains_so_many_fresh_batches_so_often_and_returns_nothing",
    ),
]

CALLBACK_HOOKS = [
    ("any hook may be overridden; the others do nothing", "test_a_hook_that_is_not_overridden_does_nothing"),
    (
        "arguments are positional and typed: a type checker finds mistakes",
        "tests/typing/test_types.py::test_every_mistake_is_found_and_nothing_else",
    ),
    ("a type checker accepts what is right", "tests/typing/test_types.py::test_right_code_passes"),
    (
        "editors can complete hooks: their hints resolve",
        "tests/lifecycle/test_golden.py::test_every_hook_has_hints_that_resolve",
    ),
    ("there is no generic bag of event data", "test_a_bag_of_arguments_is_no_hook"),
    ("arguments have the documented types in a run", "test_the_arguments_have_the_documented_types_in_runs"),
    (
        "a hook fires at one moment, which its docstring names",
        "test_a_hook_has_one_moment_and_its_docstring_says_when_that_is",
    ),
    ("all hooks are plain functions", "test_a_hook_is_a_plain_function"),
    ("an async def is not a hook", "test_an_async_hook_is_refused_with_what_to_do_instead"),
    ("async work is started in a hook with asyncio.create_task", "test_tasks_that_hooks_create_are_run"),
    ("on_train_start(state: LoopState) -> None", "test_the_signature_of[on_train_start]"),
    ("on_train_end(state, artifacts: LoopArtifacts) -> None", "test_the_signature_of[on_train_end]"),
    (
        "on_step_end(state, step_idx: int, batch: TrainingBatch, metrics: dict[str, float]) -> None",
        "test_the_signature_of[on_step_end]",
    ),
    ("on_checkpoint(state, row: ManifestRow) -> None", "test_the_signature_of[on_checkpoint]"),
    (
        "on_eval(state, step_idx: int, eval_name: str, metrics: dict[str, float]) -> None",
        "test_the_signature_of[on_eval]",
    ),
    ("on_experiment_start(ctx: LogContext) -> None", "test_the_signature_of[on_experiment_start]"),
    ("on_group_start(ctx, group_name: str) -> None", "test_the_signature_of[on_group_start]"),
    ("on_run_start(ctx) -> None", "test_the_signature_of[on_run_start]"),
    (
        "on_benchmark_eval(ctx, eval_result: EvalResult, predictions: list[dict], *, step: int | None = None) -> None",
        "test_the_signature_of[on_benchmark_eval]",
    ),
    ("on_run_end(ctx, run_result: RunResult, arm: ArmResult) -> None", "test_the_signature_of[on_run_end]"),
    ("on_experiment_end(ctx, result: ExperimentResult) -> None", "test_the_signature_of[on_experiment_end]"),
    ("on_train_start fires once, before the first step", "test_train_start_fires_once_before_the_first_step"),
    (
        "a run has one on_train_start, and a checkpoint one on_checkpoint",
        f"{LOGGER}test_named_by_a_file_in_one_instance_for_training_and_for_resuming",
        "Resumed runs",
    ),
    (
        "on_train_start is the place to open log files and to write down the configuration",
        "test_a_log_is_opened_and_the_configuration_written_before_the_first_step",
    ),
    ("on_train_start has a service's run to write to", "test_a_wandb_run_is_there_before_the_first_step"),
    (
        "Weights & Biases runs are opened before training",
        "tests/callbacks/test_run_logger.py::test_a_run_is_open_from_run_start_to_run_end",
    ),
    (
        "on_train_end fires once, after the loop and the final checkpoint",
        "test_train_end_fires_once_after_the_loop_and_the_final_checkpoint",
    ),
    (
        "on_train_end follows a loop that completed",
        "test_train_end_fires_once_after_an_error_too",
        "Ends in every case",
    ),
    ("on_train_end is the place to write summaries and close files", "test_a_log_is_completed_and_closed_at_the_end"),
    ("on_step_end fires after every step", "test_step_end_fires_after_every_step"),
    (
        "when it fires, the step's row of metrics is written",
        "test_step_end_fires_when_the_row_of_its_metrics_is_written",
        "A step that is cut short",
    ),
    ("the metrics of the hook are those of the row", "test_what_a_hook_is_given_is_what_was_written"),
    ("batch is what the step was taken on", "test_the_batch_of_a_step_is_what_it_was_taken_on"),
    ("every step has a batch", "test_a_step_without_data_has_no_batch", "Steps without data"),
    ("on_step_end is the place to print and plot", "test_a_step_s_metrics_can_be_printed_and_plotted"),
    ("on_step_end is the place to derive metrics", "test_a_metric_that_a_hook_derives_is_recorded_at_its_step"),
    ("on_step_end is the place to debug gradients", "test_gradients_can_be_debugged", "Gradients"),
    (
        "on_checkpoint fires after each row of the manifest",
        "test_checkpoint_fires_once_for_each_when_its_row_is_in_the_manifest",
        "The final checkpoint",
    ),
    (
        "on_checkpoint is the place to ship a checkpoint to other storage",
        "test_a_checkpoint_can_be_shipped_from_the_hook",
    ),
    (
        "checkpoints can be shipped to S3 and the like",
        "tests/callbacks/test_upload.py::test_each_checkpoint_is_copied_and_the_last_one_is_final",
    ),
    ("on_checkpoint is the place to remove old checkpoints", "test_old_checkpoints_can_be_pruned_in_the_hook"),
    (
        "checkpoints can be removed and shipped on Ray, where trainers write them",
        "tests/integration/test_ray_hooks.py::test_hooks_in_the_driver_remove_and_upload_checkpoints",
    ),
    (
        "on_checkpoint is the place to start an eval of its model",
        "test_the_model_of_a_checkpoint_can_be_evaluated_in_the_hook",
    ),
    (
        "on_eval fires for each evaluator after each eval in the loop",
        "test_eval_fires_for_each_evaluator_after_each_of_its_evals",
    ),
    ("on_eval fires when the eval is complete", "test_eval_follows_the_eval_itself"),
    ("on_eval is the place to push scores to a dashboard and plot curves", "test_scores_can_be_pushed_to_a_dashboard"),
    ("on_eval is the place to stop early", "test_an_eval_can_stop_training_early"),
    (
        "whoever needs predictions gets them from on_benchmark_eval, which the loop fires too",
        "test_benchmarks_in_the_loop_carry_their_predictions_too",
    ),
    (
        "on_benchmark_eval in the loop is for benchmarks",
        "tests/experiments/test_hooks.py::test_the_loss_of_a_supervised_run_and_a_function_of_ones_own_are_evals_like_others",
        "Every eval is a benchmark",
    ),
    ("on_experiment_start fires once, before any arm", "test_experiment_start_fires_once_before_any_run"),
    (
        "the hooks of experiments fire in experiments",
        f"{LOGGER}test_in_a_plain_run",
        "A plain run is an experiment of one",
    ),
    (
        "a logger puts experiment_id into ctx.ids there, for all later hooks",
        "test_the_id_of_an_experiment_is_there_for_all_later_hooks",
    ),
    ("on_group_start fires when repeats need a group", "test_group_start_fires_for_repeats_before_their_first_run"),
    (
        "on_group_start fires when continual stages need a group",
        "test_group_start_fires_for_stages_before_their_first_run",
    ),
    ("on_group_start fires only where a group is needed", "test_without_repeats_and_stages_there_is_no_group"),
    (
        "a logger puts group:<name> into ctx.ids there, for the runs of the group",
        "test_the_id_of_a_group_is_there_for_its_runs",
    ),
    ("on_run_start fires for each arm, before training", "test_run_start_fires_for_each_run_before_training"),
    ("ctx.run_config is set then", "test_the_configuration_of_a_run_is_there_when_it_starts"),
    (
        "a logger reads the ids of experiment and group there, to file the run below them",
        "test_a_run_is_opened_below_its_experiment_and_group",
    ),
    ("a logger puts run_id into ctx.ids there", "test_the_id_of_a_run_is_there_for_its_later_hooks_and_results"),
    (
        "on_benchmark_eval fires for each benchmark in the loop, with the step",
        "test_benchmarks_in_the_loop_have_the_step_that_was_trained",
    ),
    (
        "on_benchmark_eval fires for each benchmark after training, with None",
        "test_benchmarks_after_training_have_no_step",
    ),
    ("eval_result carries metrics", "test_a_benchmarks_result_carries[metrics]"),
    ("eval_result carries breakdowns", "test_a_benchmarks_result_carries[breakdowns]"),
    ("eval_result carries tags", "test_a_benchmarks_result_carries[tags]"),
    ("predictions are rows, one for each task", "test_predictions_are_rows_one_for_each_task"),
    (
        "a task has one row of predictions",
        "tests/evals/test_benchmark.py::test_a_prediction_says_all_that_is_known_of_a_completion",
        "Several samples of a task",
    ),
    ("a logger makes one eval of each name and step", "test_a_benchmark_has_one_row_for_each_name_and_step"),
    ("on_run_end fires for each arm, after its evals", "test_run_end_fires_for_each_run_after_its_evals"),
    ("on_run_end fires before the run is marked as completed", "test_run_end_fires_before_the_run_is_marked_completed"),
    ("on_run_end has the final status of the run", "test_run_end_says_how_the_run_ended"),
    ("on_run_end has the arm with its results", "test_run_end_has_the_arm_with_its_scores"),
    (
        "on_run_end is the place to close a service's run",
        "tests/callbacks/test_loggers.py::test_a_run_of_an_experiment_holds_its_benchmarks_and_belongs_to_its_group",
    ),
    ("on_experiment_end fires once, at the end", "test_experiment_end_fires_once_at_the_end"),
    ("on_experiment_end has the result, for a summary", "test_experiment_end_has_the_result_for_a_summary"),
    ("one logger written from this works in experiments of any shape", f"{LOGGER}test_in_an_experiment"),
    (
        "one logger written from this works on Ray",
        "tests/integration/test_ray_run.py::test_the_ancestors_logger_hears_a_plain_run",
    ),
]

EVENTS_AND_STATE = [
    (
        "callbacks can run any code at an event",
        "test_any_code_may_be_run_at_an_event",
    ),
    (
        "notifications reach a chat or another service",
        "tests/callbacks/test_webhook.py::test_a_run_posts_its_events_in_order_with_documented_fields",
    ),
    (
        "callbacks can stop early",
        "tests/callbacks/test_early_stopping.py::test_patience_counts_looks_without_improvement",
    ),
    (
        "callbacks can log metrics of their own",
        "tests/run/test_own_metrics.py::test_every_hook_s_metrics_are_in_the_record_at_their_step",
    ),
    (
        "ten events are supported",
        "tests/lifecycle/test_golden.py::test_the_ten_events_of_the_event_style_are_there",
    ),
    ("TrainState is a dataclass, and mutable", "test_it_is_a_dataclass_that_can_be_changed"),
    ("every callback is passed it", "test_every_callback_is_given_the_state_of_the_run"),
    ("the recipe for SFT returns it", "test_a_recipe_returns_the_state[sft]"),
    ("the recipe for DPO returns it", "test_a_recipe_returns_the_state[dpo]"),
    ("the recipe for reward models returns it", "test_a_recipe_returns_the_state[reward_model]"),
    ("the recipe for PPO returns it", "test_a_recipe_returns_the_state[ppo]"),
    ("the recipe for GRPO returns it", "test_a_recipe_returns_the_state[grpo]"),
    ("what a recipe returns is a TrainState with more", "test_a_state_of_a_run_is_a_train_state"),
    (
        "TrainState and CallbackManager are imported from one module",
        "test_state_and_manager_are_imported_from_one_place",
    ),
    ("step: int = 0", "test_the_type_and_default_of_a_field[step]"),
    ("epoch: int = 0", "test_the_type_and_default_of_a_field[epoch]"),
    ("global_step: int = 0", "test_the_type_and_default_of_a_field[global_step]"),
    ("num_epochs: int = 0", "test_the_type_and_default_of_a_field[num_epochs]"),
    ("max_steps: int = -1", "test_the_type_and_default_of_a_field[max_steps]"),
    ("metrics: dict[str, Any] = {}", "test_the_type_and_default_of_a_field[metrics]"),
    ("should_stop: bool = False", "test_the_type_and_default_of_a_field[should_stop]"),
    ("the seven can be given by position, in this order", "test_its_fields_can_be_given_in_the_documented_order"),
    ("the default of metrics is a new dict", "test_each_state_has_metrics_of_its_own"),
    ("a new state shows these defaults", f"{EXAMPLES}test_the_defaults_of_the_documented_state"),
    ("step is where training stands within the epoch", "test_step_counts_within_the_epoch"),
    ("epoch is the index of the current one", "test_epoch_is_the_number_of_the_current_one", "Epochs of an episode"),
    ("global_step counts optimizer steps over all epochs", "test_global_step_counts_optimizer_steps_over_all_epochs"),
    ("num_epochs is how many are configured", "test_num_epochs_is_how_many_there_are"),
    (
        "max_steps limits the steps; -1 does not",
        "test_max_steps_is_the_limit_and_without_one_it_is_minus_1",
        "A limit in every run",
    ),
    ("metrics has the latest loss", "test_metrics_hold_the_latest[loss]"),
    ("metrics has the latest loss of an eval", "test_metrics_hold_the_latest[eval_loss]"),
    (
        "eval_loss is the loss of the eval",
        "tests/lifecycle/test_logged.py::test_the_loss_of_the_only_loss_eval_has_a_short_name_too",
        "Several losses of evals",
    ),
    ("metrics has the learning rate", "test_metrics_hold_the_latest[learning_rate]"),
    ("metrics has the norm of the gradient", "test_metrics_hold_the_latest[grad_norm]"),
    (
        "stop_training at train_start ends training after the current step",
        "test_stop_training_ends_it_after_the_current_step_from[train_start]",
    ),
    (
        "stop_training at epoch_start ends training after the current step",
        "test_stop_training_ends_it_after_the_current_step_from[epoch_start]",
    ),
    (
        "stop_training at step_start ends training after the current step",
        "test_stop_training_ends_it_after_the_current_step_from[step_start]",
    ),
    (
        "stop_training at step_end ends training after the current step",
        "test_stop_training_ends_it_after_the_current_step_from[step_end]",
    ),
    (
        "stop_training at eval_start ends training after the current step",
        "test_stop_training_ends_it_after_the_current_step_from[eval_start]",
    ),
    (
        "stop_training at eval_end ends training after the current step",
        "test_stop_training_ends_it_after_the_current_step_from[eval_end]",
    ),
    (
        "stop_training at checkpoint_saved ends training after the current step",
        "test_stop_training_ends_it_after_the_current_step_from[checkpoint_saved]",
    ),
    (
        "nothing comes after the step that was stopped in",
        "test_what_is_due_after_the_last_step_is_still_done",
        "After a stop",
    ),
    ("should_stop = True does the same", "test_setting_should_stop_ends_it_too"),
    ("the example of early stopping works", f"{EXAMPLES}test_early_stop"),
    ("the example of early stopping works in a run", f"{EXAMPLES}test_early_stop_in_a_run"),
    ("CallbackManager() takes no arguments", "test_it_is_made_without_arguments"),
    ("its on() is a decorator that registers a function", "test_on_registers_a_function_and_leaves_it_as_it_is"),
    ("it fires an event to all that are registered for it", "test_fire_calls_every_function_of_the_event_and_no_other"),
    ("the example of a manager works", f"{EXAMPLES}test_the_callback_manager_in_a_loop_of_ones_own"),
    ("the example of a manager works in a run", f"{EXAMPLES}test_the_manager_in_a_run"),
    ("train_start fires when training begins", "test_when_it_fires[train_start]"),
    ("train_end fires when training is over", "test_when_it_fires[train_end]"),
    ("epoch_start fires when an epoch begins", "test_when_it_fires[epoch_start]"),
    ("epoch_end fires when an epoch is over", "test_when_it_fires[epoch_end]"),
    ("step_start fires when a step begins", "test_when_it_fires[step_start]"),
    ("step_end fires when a step is over", "test_when_it_fires[step_end]"),
    ("eval_start fires when an eval begins", "test_when_it_fires[eval_start]"),
    ("eval_end fires when an eval is over", "test_when_it_fires[eval_end]"),
    ("checkpoint_saved fires when a checkpoint is on disk", "test_when_it_fires[checkpoint_saved]"),
    ("error fires when training fails", "test_error_fires_once_when_training_fails"),
    ("whatever ends training early is an error", "test_an_interrupt_is_no_error", "Interrupts"),
    ("the trainer fires all of them by itself", "test_training_fires_them_itself"),
    (
        "all ten fire in every supervised recipe",
        "tests/supervised/test_supervised.py::test_all_ten_events_reach_a_plain_function",
    ),
    (
        "a loop of one's own fires them with fire(event, state)",
        "test_it_fires_for_a_loop_of_ones_own_that_keeps_a_state",
    ),
    ("the example of gradient logging works: metrics has grad_norm", f"{EXAMPLES}test_gradient_logging"),
    ("the example of gradient logging works in a run", f"{EXAMPLES}test_gradient_logging_in_a_run"),
    ("the example of a notification at a checkpoint works", f"{EXAMPLES}test_checkpoint_notification"),
    (
        "the example of a notification at a checkpoint works in a run",
        f"{EXAMPLES}test_checkpoint_notification_in_a_run",
    ),
    ("the example of error handling works: metrics has the error", f"{EXAMPLES}test_error_handling"),
    ("the example of error handling works in a run", f"{EXAMPLES}test_error_handling_in_a_run"),
]

PAGES = (
    ("ColossalChat", "tests/ancestors/test_trainer_and_maker_callbacks.py", TRAINER_AND_MAKER_CALLBACKS),
    ("ColossalChat", "tests/ancestors/test_detached_trainer.py", DETACHED_TRAINER),
    ("EvSys", "tests/ancestors/test_callback_hooks.py", CALLBACK_HOOKS),
    ("xaytune", "tests/ancestors/test_events_and_state.py", EVENTS_AND_STATE),
)
ITEMS = [
    Item(ancestor, statement, proof if "::" in proof else f"{file}::{proof}", *differs)
    for ancestor, file, rows in PAGES
    for statement, proof, *differs in rows
]
