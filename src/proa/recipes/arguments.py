"""The keyword arguments of recipes: every setting of a run, and the objects that Python may give in its place.

Written by `python -m proa.config.typed_arguments` from the configuration, which says the same of files and flags.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from ..algorithms import Algorithm
    from ..engines import EngineFactory


class ModelArguments(TypedDict, total=False):
    path: str | None
    """a Hugging Face folder, an adapter folder, or a name of the Hub: NAME/NAME@revision"""
    config: Mapping[str, Any] | None
    """or a model configuration, with weights from the seed"""
    tokenizer: str | None
    """a folder or a name of the Hub; by default the model's, or a built-in task's own"""
    dtype: str
    """what is computed in; weights are trained in float32. auto is bfloat16 on a GPU, else float32"""
    device: str
    """cpu, cuda, cuda:1; auto is the GPU where there is one"""
    attention: str
    """segments (no padding), or transformers' sdpa, eager, …; auto is segments on a GPU"""
    gradient_checkpointing: bool | Literal["auto"]
    """compute activations twice instead of keeping them; auto does where memory is short"""
    compile: bool | Literal["auto"]
    """compile layers with torch.compile; auto does on a GPU"""
    trust_remote_code: bool
    """run Python code that comes with the model"""


class TaskArguments(TypedDict, total=False):
    source: str | Path | Any
    """a built-in task, a file (.jsonl, .json, .csv, .parquet), a saved dataset, hf:NAME of the Hub, or a dotted
    path to data"""
    split: str | None
    """of a dataset that has several, e.g. train"""
    columns: Mapping[str, Any]
    """what columns are called in the data, where that is not recognised, e.g. {prompt: question}"""
    prompt_column: str
    """the column that holds the prompts; the same as columns.prompt"""
    count: int | None
    """rows to use, the first; of a built-in task, rows to draw"""
    overlong: Literal["error", "drop", "truncate_left"]
    """rows that the model's context has no room for: refuse, leave out, or cut their prompts"""
    chat_template: str | None
    """a chat template (Jinja), as text or as a file, in place of the tokenizer's"""
    chat_template_kwargs: Mapping[str, Any]
    """values for names in the chat template, e.g. {enable_thinking: false}"""


class SupervisedAlgorithmArguments(TypedDict, total=False):
    name: Literal["sft", "dpo", "reward_model"]
    """what is learned from the data"""
    params: Mapping[str, Any]
    """settings of the algorithm itself, e.g. clip_high"""


class LoraArguments(TypedDict, total=False):
    rank: int
    """the width of the adapter"""
    alpha: float
    """the adapter is scaled by alpha / rank"""
    target_modules: Literal["all-linear"] | Sequence[str]
    """names of linear layers"""
    rslora: bool
    """scale by alpha / sqrt(rank)"""
    path: str | None
    """an adapter folder to continue from; it has the other settings"""


class EngineArguments(TypedDict, total=False):
    kind: str
    """native, hf, vllm, an installed package's, or package.module:Engine"""
    dtype: str | None
    """in which it computes; by default the model's"""
    device: str | None
    """where it computes; by default where the model is trained"""
    address: str | None
    """of a vLLM server that runs already, e.g. http://127.0.0.1:8000, with kind: vllm"""
    slots: int
    """sequences decoded at once; 0 is the engine's own number"""
    cache_tokens: int
    """tokens that the cache of native or vllm has room for; 0 takes what the slots need"""
    sleep: bool | Literal["auto"]
    """give the memory of the cache back whenever nothing is decoded; auto does in synchronous runs on a GPU that is
    short of memory"""
    options: Mapping[str, Any]
    """vLLM's own arguments, by name"""
    params: Mapping[str, Any]
    """further settings of an engine of your own"""


class SamplingArguments(TypedDict, total=False):
    max_new_tokens: int
    """the most tokens of a completion"""
    stop: Sequence[str]
    """texts that end a completion, after the token that completes one, e.g. ["</answer>"]; in evals too"""


class OptimizerArguments(TypedDict, total=False):
    learning_rate: float
    """the largest step of a weight, about"""
    weight_decay: float
    """of matrices; biases and norms are never decayed"""
    schedule: Literal["constant", "linear", "cosine"]
    """how the learning rate falls to the end of the run"""
    warmup_steps: int
    """steps over which the learning rate rises from 0"""
    kind: Literal["adamw", "adamw_8bit", "paged_adamw_8bit"]
    """the 8-bit ones are bitsandbytes': a quarter of the memory for moments"""
    state: Literal["float32", "bfloat16"]
    """bfloat16 trains a bfloat16 model without float32 weights: less memory, and small steps are lost"""
    betas: Sequence[float]
    """how fast AdamW forgets gradients and their squares"""
    epsilon: float
    """added to the denominator of AdamW's steps"""
    max_grad_norm: float
    """a longer gradient is shortened to this; 0 disables clipping"""
    token_budget: int | Literal["auto"]
    """tokens of a micro-batch; 0 takes the whole batch at once; auto follows the memory"""


class CheckpointArguments(TypedDict, total=False):
    save_every: int
    """optimizer steps between checkpoints; 0 saves at the end only"""
    keep: int | None
    """how many of the newest to keep; null keeps all"""
    best: str | None
    """a metric whose best checkpoint is kept as well, e.g. held_out.exact"""
    mode: Literal["max", "min"]
    """which value of it is best"""
    background: bool
    """write while training continues, at the cost of a copy in memory"""
    grace: float
    """seconds for a last checkpoint after Ctrl-C, SIGTERM or a closed terminal"""


class RecordArguments(TypedDict, total=False):
    rollouts: int
    """completions recorded per step, with values for each token; 0 disables it"""
    rollouts_every: int | None
    """steps between records; by default about fifty in the run"""
    spans: bool
    """a timeline of all actors"""


class EvalArguments(TypedDict, total=False):
    name: str
    """its name, in metrics as <name>.<metric>"""
    source: str | Path | Any | None
    """data to evaluate on; by default the test split of the task"""
    split: str | None
    """of a dataset that has several, e.g. test"""
    columns: Mapping[str, Any] | None
    """what columns are called in the data; by default what task.columns says, {} for none"""
    count: int
    """prompts to evaluate on"""
    metric: str | Callable[..., Any] | Sequence[Callable[..., Any]] | None
    """dotted path of a scoring function; by default that of its task, or the run's reward"""
    max_new_tokens: int | None
    """by default that of sampling"""
    samples: int
    """completions of each prompt; with several, pass@k and mean@k"""
    temperature: float | None
    """by default 0, which is greedy; with several samples 1"""
    correct_at: float
    """a completion with at least this reward counts as correct"""
    breakdown: Sequence[str]
    """columns to break scores down by"""
    tags: Sequence[str]
    """words to find its results by"""
    evaluator: str | Callable[..., Any] | None
    """dotted path of a function, async or not, that is called with the policy and returns numbers"""
    kind: Literal["auto", "generate", "loss"]
    """score greedy completions, or compute the loss on data; auto follows the algorithm"""
    run_every: int
    """steps between evals; 0 evaluates at the end only"""
    baseline: bool
    """also before the first step"""
    apart: bool
    """score a copy of the weights in the background, while training continues to the next checkpoint"""


class SupervisedArguments(TypedDict, total=False):
    name: str
    """of the run, and of its folder; auto is algorithm and task, with a number if that is used"""
    output_dir: str | Path
    """where the folders of runs are"""
    seed: int
    """all that is random follows from it"""
    threads: int
    """torch threads per role"""
    deterministic: bool
    """the same bits each time on a GPU too; false allows any kernel"""
    total_steps: int
    """fresh batches; or give epochs"""
    epochs: float | None
    """passes over the prompts, or the data, instead of total_steps, which config.json then has"""
    train_epochs: int
    """passes over each episode's batches"""
    train_batch_size: int
    """samples, whole groups"""
    model: ModelArguments | str | Path | PreTrainedModel
    """what is trained"""
    task: TaskArguments | str | Path | Any
    """the prompts, or the data"""
    algorithm: SupervisedAlgorithmArguments | str | Algorithm
    """what is learned from the data"""
    lora: LoraArguments | None
    """train an adapter beside a frozen model"""
    engine: EngineArguments | str | EngineFactory
    """what generates"""
    sampling: SamplingArguments
    """how completions are generated"""
    optimizer: OptimizerArguments
    """how weights follow gradients"""
    checkpoint: CheckpointArguments
    """when checkpoints are saved, and which are kept"""
    progress: bool
    """show progress on the console, or in the notebook's output"""
    record: RecordArguments
    """what is recorded besides metrics and evals"""
    eval: Sequence[EvalArguments]
    """evals while it trains, and at the end"""
    tokenizer: str | Path | PreTrainedTokenizerBase
    """a folder, or a tokenizer"""
    resume: str | Path | None
    """auto continues the run that is in its folder; or a checkpoint, or an address"""
    allow_changes: bool
    """resume although data, rewards or models have changed"""
    overwrite: bool
    """replace the run that is in the folder"""


class DetachedTaskArguments(TypedDict, total=False):
    source: str | Path | Any
    """a built-in task, a file (.jsonl, .json, .csv, .parquet), a saved dataset, hf:NAME of the Hub, or a dotted
    path to data"""
    split: str | None
    """of a dataset that has several, e.g. train"""
    columns: Mapping[str, Any]
    """what columns are called in the data, where that is not recognised, e.g. {prompt: question}"""
    prompt_column: str
    """the column that holds the prompts; the same as columns.prompt"""
    count: int | None
    """rows to use, the first; of a built-in task, rows to draw"""
    overlong: Literal["error", "drop", "truncate_left"]
    """rows that the model's context has no room for: refuse, leave out, or cut their prompts"""
    chat_template: str | None
    """a chat template (Jinja), as text or as a file, in place of the tokenizer's"""
    chat_template_kwargs: Mapping[str, Any]
    """values for names in the chat template, e.g. {enable_thinking: false}"""
    system_prompt: str | None
    """a system message before each prompt that has none; a prompt that is text becomes the user's"""


class DetachedAlgorithmArguments(TypedDict, total=False):
    name: str
    """grpo, dr_grpo, dapo, ppo, rloo, gspo, cispo, reinforce_pp, decoupled; sft, dpo, reward_model; or
    package.module:Algorithm"""
    params: Mapping[str, Any]
    """settings of the algorithm itself, e.g. clip_high"""
    old: Literal["sampler", "trainer"]
    """what the ratio is taken against: the sampler's log-probabilities, or the trainer's first pass"""
    importance_cap: float
    """with old: trainer, the most that a token's mismatch with the sampler may weigh"""


class DetachedSamplingArguments(TypedDict, total=False):
    max_new_tokens: int
    """the most tokens of a completion"""
    stop: Sequence[str]
    """texts that end a completion, after the token that completes one, e.g. ["</answer>"]; in evals too"""
    group_size: int
    """completions per prompt"""
    temperature: float
    """also used for the trainer's log-probabilities"""
    top_p: float
    """sample from the likeliest tokens that make up this share; 1 is all"""
    top_k: int
    """0 keeps all tokens"""
    min_p: float
    """sample from tokens at least this many times as likely as the likeliest; 0 is all"""
    repetition_penalty: float
    """divides positive logits of tokens that the text already has, and multiplies negative ones; 1 is none"""


class DetachedOptimizerArguments(TypedDict, total=False):
    learning_rate: float
    """the largest step of a weight, about"""
    weight_decay: float
    """of matrices; biases and norms are never decayed"""
    schedule: Literal["constant", "linear", "cosine"]
    """how the learning rate falls to the end of the run"""
    warmup_steps: int
    """steps over which the learning rate rises from 0"""
    kind: Literal["adamw", "adamw_8bit", "paged_adamw_8bit"]
    """the 8-bit ones are bitsandbytes': a quarter of the memory for moments"""
    state: Literal["float32", "bfloat16"]
    """bfloat16 trains a bfloat16 model without float32 weights: less memory, and small steps are lost"""
    betas: Sequence[float]
    """how fast AdamW forgets gradients and their squares"""
    epsilon: float
    """added to the denominator of AdamW's steps"""
    max_grad_norm: float
    """a longer gradient is shortened to this; 0 disables clipping"""
    token_budget: int | Literal["auto"]
    """tokens of a micro-batch; 0 takes the whole batch at once; auto follows the memory"""
    share_prompts: bool | Literal["auto"]
    """compute a prompt once for its group; auto does on a GPU, elsewhere it pays unless completions are far
    longer"""


class RewardModelArguments(TypedDict, total=False):
    path: str
    """a folder, or a name of the Hub, of a sequence-classification model with one label"""
    weight: float
    """what its score counts beside the functions'"""
    token_budget: int
    """tokens scored at once; 0 scores a whole lease at once"""


class RewardArguments(TypedDict, total=False):
    functions: Sequence[str] | Callable[..., Any] | Sequence[Callable[..., Any]]
    """dotted paths; by default the reward model alone, or the task's own"""
    weights: Sequence[float] | None
    """one for each function; by default 1 each"""
    model: RewardModelArguments | str | None
    """a reward model's folder, alone or with functions"""
    timeout: float
    """seconds for one call"""
    workers: int
    """processes; 0 scores in the makers, without a deadline"""


class EnvironmentArguments(TypedDict, total=False):
    path: str | None
    """dotted path of an environment: a class, an object, or a function that makes one"""
    params: Mapping[str, Any]
    """what the class or the function is called with"""
    max_turns: int
    """turns of the model in one conversation"""
    max_trajectory_tokens: int | None
    """tokens of a conversation, answers included; by default the model's context"""
    call_timeout: float
    """seconds for one call of a tool"""
    step_timeout: float
    """seconds for one answer of an environment"""
    trajectory_timeout: float
    """seconds for a whole conversation"""
    workers: int
    """processes of each maker that environments live in"""
    memory_gib: float | None
    """the most memory of such a process; null is no limit"""


class CriticArguments(TypedDict, total=False):
    kind: Literal["shared", "separate"]
    """a head on the policy, or a separate model"""
    path: str | None
    """separate only: the folder of a reward model to start from"""
    learning_rate: float | None
    """separate only; by default the policy's"""


class RayArguments(TypedDict, total=False):
    address: str | None
    """an existing cluster; by default one is started on this machine"""
    trainer: Mapping[str, Any]
    """Ray's options for each trainer, e.g. {num_gpus: 1}"""
    maker: Mapping[str, Any]
    """Ray's options for each maker, e.g. {num_gpus: 0.5}"""
    placement: Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"] | None
    """reserve resources for all actors at once, on few nodes or on many; by default Ray decides"""
    min_makers: int
    """with fewer, the run ends"""
    max_restarts: int
    """restarts of a maker in a row without any result, before its slot stays empty"""
    trainer_restarts: int
    """how often a trainer that died is restarted from its checkpoint"""
    log_to_driver: bool
    """show what actors print in the driver's output, each line with the actor's name"""


class WarmStartArguments(TypedDict, total=False):
    steps: int
    """supervised steps"""
    batch_size: int
    """rows of a supervised step"""
    learning_rate: float
    """of the supervised steps"""


class DetachedArguments(TypedDict, total=False):
    name: str
    """of the run, and of its folder; auto is algorithm and task, with a number if that is used"""
    output_dir: str | Path
    """where the folders of runs are"""
    seed: int
    """all that is random follows from it"""
    threads: int
    """torch threads per role"""
    deterministic: bool
    """the same bits each time on a GPU too; false allows any kernel"""
    total_steps: int
    """fresh batches; or give epochs"""
    epochs: float | None
    """passes over the prompts, or the data, instead of total_steps, which config.json then has"""
    train_epochs: int
    """passes over each episode's batches"""
    train_batch_size: int
    """samples, whole groups"""
    model: ModelArguments | str | Path | PreTrainedModel
    """what is trained"""
    task: DetachedTaskArguments | str | Path | Any
    """the prompts, or the data"""
    algorithm: DetachedAlgorithmArguments | str | Algorithm
    """how it learns"""
    lora: LoraArguments | None
    """train an adapter beside a frozen model"""
    engine: EngineArguments | str | EngineFactory
    """what generates"""
    sampling: DetachedSamplingArguments
    """how completions are generated"""
    optimizer: DetachedOptimizerArguments
    """how weights follow gradients"""
    checkpoint: CheckpointArguments
    """when checkpoints are saved, and which are kept"""
    progress: bool
    """show progress on the console, or in the notebook's output"""
    record: RecordArguments
    """what is recorded besides metrics and evals"""
    eval: Sequence[EvalArguments]
    """evals while it trains, and at the end"""
    runtime: Literal["local", "ray"]
    """threads of one process, or actors on a Ray cluster"""
    makers: int
    """how many generate; they change nothing but speed"""
    trainers: int
    """each computes its share of every batch; several need ray"""
    max_staleness: int
    """versions a sample may lag behind; 0 is synchronous"""
    schedule: Literal["in_order", "windowed"]
    """train on leases in their order, or as they finish within the window that is admitted"""
    update_steps: int
    """steps between two pushes of weights"""
    buffer_limit: int
    """batches; 0 is unlimited"""
    lease_prompts: int | None
    """by default about a quarter of a batch's prompts"""
    wait_timeout: float
    """seconds; the deadline of every wait"""
    lease_timeout: float | None
    """seconds a maker may hold a lease before another gets it; by default half of wait_timeout"""
    reward: RewardArguments | str | Callable[..., Any] | Sequence[Callable[..., Any] | str]
    """what scores completions"""
    tools: Sequence[str] | Sequence[Callable[..., Any] | str]
    """functions that the model may call between its turns, as dotted paths"""
    environment: EnvironmentArguments | str | Callable[..., Any] | Any
    """what answers the model between its turns, and how long conversations may be"""
    agent: str | Callable[..., Any] | None
    """dotted path of a function that talks to the model through an endpoint, as it likes"""
    critic: CriticArguments | str | None
    """for algorithms that need one; by default a head on the policy"""
    ray: RayArguments
    """settings of runtime: ray"""
    warm_start: WarmStartArguments | None
    """a short supervised phase before the run proper"""
    tokenizer: str | Path | PreTrainedTokenizerBase
    """a folder, or a tokenizer"""
    resume: str | Path | None
    """auto continues the run that is in its folder; or a checkpoint, or an address"""
    allow_changes: bool
    """resume although data, rewards or models have changed"""
    overwrite: bool
    """replace the run that is in the folder"""
