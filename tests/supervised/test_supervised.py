"""SFT, reward models and DPO: exact gradients, a seeded order, the whole lifecycle, and that each learns."""

import copy
import math
from contextlib import contextmanager, nullcontext

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from proa import CallbackManager, ManifestRow
from proa.config.supervised_settings import DPOSettings, SFTSettings
from proa.data.experience import BufferItem, merge
from proa.data.loop import TrainingBatch
from proa.errors import NothingToTrainOnError
from proa.learning.optimizer import Optimizer, OptimizerSettings
from proa.loop import SaveFunction, ScoreFunction
from proa.maths.preferences import bradley_terry, brier_score, calibration_error, dpo_sigmoid, ipo
from proa.policy.log_probs import action_statistics
from proa.policy.micro_batches import plan_micro_batches, take_rows
from proa.policy.models import load_model, model_weights
from proa.policy.policy import Reference
from proa.policy.reward_model import build_reward_model
from proa.supervised.dpo import ReferenceLogProbs, fit_dpo
from proa.supervised.reward_model import fit_reward_model
from proa.supervised.sft import Examples, SFTStep, fit_sft, held_out_loss
from proa.supervised.training import BatchOrder, HeldOut, SupervisedError, SupervisedStep, tokenise_pairs
from proa.tasks import Task, TaskError, TaskRow, load_task
from proa.tasks.builtin import builtin_task
from proa.tasks.builtin.characters import tokenizer as make_tokenizer
from proa.tasks.preferences import PreferencePair, load_preferences

torch.set_num_threads(1)

EXACT = {"rtol": 1e-12, "atol": 1e-12}
SIZES = {
    "model_type": "llama", "vocab_size": 16, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64,
    "bos_token_id": None, "eos_token_id": 1, "pad_token_id": 0,
}  # fmt: skip
PLAIN = OptimizerSettings(learning_rate=1e-2, max_grad_norm=0)
TOKENIZER = make_tokenizer()


def make_model(dtype="float64", *, seed=0, scale=10.0):
    """A tiny model, with larger weights than usual so that tokens matter."""
    model = load_model(SIZES, dtype=dtype, seed=seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(scale)
    return model


def make_reward_model(dtype="float64", *, seed=0):
    model = build_reward_model(make_model(dtype, seed=seed), seed=seed)
    with torch.no_grad():
        model.score.weight.mul_(100.0)
    return model


def gradients(model):
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}


def gradients_of(model, loss):
    model.zero_grad()
    loss.backward()
    return gradients(model)


def assert_same(left, right):
    assert left.keys() == right.keys()
    for name in left:
        torch.testing.assert_close(left[name], right[name], msg=lambda text, name=name: f"{name}: {text}", **EXACT)


def same_bits(left, right):
    one, other = model_weights(left), model_weights(right)
    return all(torch.equal(one[name], other[name]) for name in one)


def at_each_step(name, read):
    """A manager that reads something at every `step_end`, and what it read."""
    seen = []
    manager = CallbackManager()
    manager.on("step_end")(lambda state, batch, metrics: seen.append(read(batch, metrics)))
    return manager, seen


def losses_of(fit):
    manager, seen = at_each_step("loss", lambda batch, metrics: metrics["loss"])
    fit(manager)
    return seen


def test_a_pair_with_a_token_that_cannot_come_is_refused_before_the_first_step():
    model = make_model()
    head = torch.nn.Linear(16, 16, dtype=torch.float64)
    with torch.no_grad():
        head.bias[TOKENIZER("7")["input_ids"][0]] = -math.inf
    model.lm_head = head
    pairs = [PreferencePair("1>", "2", "3"), PreferencePair("1>", "2", "73")]
    with pytest.raises(
        SupervisedError, match="preference pair 1: the rejected completion has a token that cannot come"
    ):
        fit_dpo(model, TOKENIZER, pairs, steps=1, batch_size=2)


# -- the order of batches


@given(
    rows=st.integers(1, 12), batch_size=st.integers(1, 15), steps=st.integers(1, 9), epoch=st.integers(0, 5),
    seed=st.integers(-(2**60), 2**60),
)  # fmt: skip
def test_within_an_epoch_each_pass_is_a_permutation(rows, batch_size, steps, epoch, seed):
    batches = list(BatchOrder(rows, batch_size, steps, 6, seed).epoch(epoch))
    assert [len(batch) for batch in batches] == [batch_size] * steps
    drawn = [row for batch in batches for row in batch]
    for begin in range(0, len(drawn) - rows + 1, rows):
        assert sorted(drawn[begin : begin + rows]) == list(range(rows))


def test_one_pass_has_every_row():
    order = BatchOrder(10, 4, None, 2, 0)
    assert (order.steps_per_epoch, order.total_steps) == (3, 6)
    for epoch in range(2):
        assert {row for batch in order.epoch(epoch) for row in batch} == set(range(10))


def test_the_order_follows_from_seed_and_epoch_and_is_the_same_in_every_release():
    order = BatchOrder(7, 7, 1, 3, 0)
    assert [next(order.epoch(epoch)) for epoch in range(3)] == ORDERS_OF_SEED_0
    assert next(BatchOrder(7, 7, 1, 3, 1).epoch(0)) != ORDERS_OF_SEED_0[0]


ORDERS_OF_SEED_0 = [[4, 0, 5, 3, 2, 6, 1], [3, 5, 2, 4, 0, 1, 6], [4, 3, 5, 0, 6, 1, 2]]


@pytest.mark.parametrize(("batch_size", "steps", "epochs"), [(2, 3, 1), (2, 3, 4), (5, 2, 1), (3, 9, 2), (20, 1, 1)])
def test_what_is_drawn_is_what_the_batches_have(batch_size, steps, epochs):
    order = BatchOrder(13, batch_size, steps, epochs, 5)
    assert order.drawn() == sorted({row for epoch in range(epochs) for batch in order.epoch(epoch) for row in batch})


@pytest.mark.parametrize("wrong", [{"steps": 0}, {"batch_size": 0}, {"epochs": 0}, {"steps": 1.5}])
def test_numbers_that_are_none_are_refused(wrong):
    with pytest.raises(SupervisedError, match=f"{next(iter(wrong))} must be a whole number, at least 1"):
        BatchOrder(**{"rows": 3, "batch_size": 1, "steps": 1, "epochs": 1, "seed": 0, **wrong})


# -- SFT

TASK = load_task(
    [{"prompt": prompt, "answer": answer} for prompt, answer in [("1+2>", "3"), ("10+20>", "30"), ("7>", "12345")]]
    + [{"prompt": "98765>", "answer": "0"}, {"prompt": "4+4>", "answer": "88"}]
)


FEW = Task("few", TASK.rows[:2])


def loss_by_definition(model, examples):
    """The mean over all learned tokens of the batch, from the whole logits, one row at a time."""
    total, tokens = 0.0, 0
    for row in range(len(examples)):
        item = examples[row]
        log_probs = model(input_ids=item.sequences[None]).logits[0].log_softmax(-1)
        for place in (item.action_mask.nonzero()[:, 0] + item.prompt_length).tolist():
            total = total - log_probs[place - 1, item.sequences[place]]
            tokens += 1
    return total / tokens


def whole_batch(examples):
    return TrainingBatch(merge([examples[row] for row in range(len(examples))]))


CHAT = (
    "{% for m in messages %}{{ '+' if m.role == 'user' else '>' }}{{ m.content }}<end> {% endfor %}"
    "{% if add_generation_prompt %}>{% endif %}"
)
TALKS = [
    [("user", "1"), ("assistant", "23"), ("user", "4"), ("assistant", "5")],
    [("user", "12345"), ("assistant", "6")],
    [("user", "1"), ("assistant", "2"), ("user", "3"), ("assistant", "4"), ("user", "56"), ("assistant", "789")],
]


def chat_tokenizer():
    tokenizer = make_tokenizer()
    tokenizer.chat_template = CHAT
    return tokenizer


def talks():
    return load_task(
        [{"messages": [{"role": role, "content": text} for role, text in talk]} for talk in TALKS],
        prompt_column="messages",
    )


EXAMPLES = {
    "answers": lambda: Examples(TASK, TOKENIZER),
    "prompts too": lambda: Examples(TASK, TOKENIZER, SFTSettings(train_on_prompt=True)),
    "last message": lambda: Examples(talks(), chat_tokenizer()),
    "every message": lambda: Examples(talks(), chat_tokenizer(), SFTSettings(every_answer=True)),
}


@pytest.mark.parametrize("kind", EXAMPLES)
@pytest.mark.parametrize(("token_budget", "packing"), [(0, False), (1, False), (25, False), (0, True), (1, True)])
def test_any_micro_batches_and_packing_give_the_gradient_of_the_token_mean(token_budget, packing, kind):
    model, examples = make_model(), EXAMPLES[kind]()
    loss = loss_by_definition(model, examples)
    expected = gradients_of(model, loss)
    optimizer = Optimizer(model.named_parameters(), PLAIN, 1)
    metrics = SFTStep(model, optimizer, token_budget, packing=packing)(whole_batch(examples))
    assert metrics["loss"] == pytest.approx(loss.item(), rel=1e-12)
    assert_same(gradients(model), expected)


def learned_text(examples, row):
    item = examples[row]
    return [TOKENIZER.decode([token]) for token in item.sequences[item.prompt_length :][item.action_mask].tolist()]


def test_what_is_learned_is_the_answer_and_its_end():
    assert learned_text(EXAMPLES["answers"](), 1) == ["3", "0", "<end>"]
    assert learned_text(EXAMPLES["prompts too"](), 0) == ["+", "2", ">", "3", "<end>"]
    assert learned_text(EXAMPLES["last message"](), 0) == ["5", "<end>"]
    assert learned_text(EXAMPLES["every message"](), 0) == ["2", "3", "<end>", "5", "<end>"]


def test_the_answer_to_messages_is_the_assistants_message():
    row = {"prompt": [{"role": "user", "content": "1"}], "answer": 23}
    item = Examples(load_task([row]), chat_tokenizer())[0]
    assert TOKENIZER.decode(item.sequences) == "+1<end> >23<end>"
    assert item.action_length == 3


def test_trls_prompts_and_completions_are_learned_as_conversations():
    asked, said = {"role": "user", "content": "1"}, {"role": "assistant", "content": "23"}
    more = [{"role": "user", "content": "4"}, {"role": "assistant", "content": "5"}]
    cases = [
        ({"prompt": [asked], "completion": [said]}, "+1<end> >23<end>", "23<end>"),
        ({"prompt": [asked], "completion": said}, "+1<end> >23<end>", "23<end>"),
        ({"prompt": [asked], "completion": "23"}, "+1<end> >23<end>", "23<end>"),
        ({"prompt": [asked], "completion": [said, *more]}, "+1<end> >23<end> +4<end> >5<end>", "23<end>5<end>"),
        ({"prompt": [asked, said, more[0]], "completion": more[1:]}, "+1<end> >23<end> +4<end> >5<end>", "5<end>"),
        ({"prompt": [asked, said], "completion": more[1:]}, "+1<end> >235<end>", "5<end>"),
        ({"prompt": "1>", "completion": "23"}, "1>23<end>", "23<end>"),
    ]
    for row, text, learned in cases:
        for options in ({}, {"answer_column": "completion"}):
            examples = Examples(load_task([row]), chat_tokenizer(), SFTSettings(**options))
            assert (TOKENIZER.decode(examples[0].sequences), "".join(learned_text(examples, 0))) == (text, learned), row


def test_an_answer_that_is_neither_text_nor_messages_is_refused():
    refused([TaskRow("1>", {"answer": ["2"]})], r"mine, row 0: answer is some text, or messages .*not \['2'\]")
    refused([TaskRow("1>", {"answer": {"text": "2"}})], "mine, row 0: answer is some text, or messages")
    refused(
        [TaskRow("1>", {"completion": [{"role": "assistant", "content": "2"}]})],
        "mine, row 0: the prompt is text and completion is messages: give both",
    )


def reference_sft(model, task, steps, batch_size, seed, token_budget):
    """SFT as it was before packing, epochs and conversations: its order and its bits are kept."""
    optimizer = Optimizer(model.named_parameters(), OptimizerSettings(learning_rate=1e-2), steps)
    generator, order, losses = torch.Generator().manual_seed(seed), [], []
    for _ in range(steps):
        while len(order) < batch_size:
            order += torch.randperm(len(task.rows), generator=generator).tolist()
        rows, order = order[:batch_size], order[batch_size:]
        items = []
        for row in rows:
            prompt = TOKENIZER(task.rows[row].prompt)["input_ids"]
            ids = [*TOKENIZER(task.rows[row].columns["answer"], add_special_tokens=False)["input_ids"], 1]
            tokens = torch.tensor([*prompt, *ids])
            items.append(BufferItem(tokens, torch.zeros(len(ids)), attention_mask=torch.ones(len(tokens)).bool()))
        batch = merge(items)
        optimizer.zero_grad()
        total = 0.0
        for rows in plan_micro_batches(batch.attention_mask.sum(-1).tolist(), token_budget):
            micro = take_rows(batch, rows)
            actions = micro.action_log_probs.shape[1]
            statistics = action_statistics(model, micro.sequences, micro.attention_mask, actions)
            loss = -statistics.log_probs_BA.sum() / int(sum(item.action_length for item in items))
            loss.backward()
            total += float(loss.detach())
        optimizer.step(True)
        losses.append(total)
    return losses


def test_one_epoch_is_bit_for_bit_what_it_always_was():
    task = builtin_task("sort_digits", count=20)
    ours, reference = make_model("float32"), make_model("float32")
    expected = reference_sft(reference, task, steps=6, batch_size=8, seed=3, token_budget=60)
    losses = losses_of(
        lambda manager: fit_sft(
            ours, TOKENIZER, task, steps=6, batch_size=8, seed=3, token_budget=60, callbacks=manager,
            optimizer=OptimizerSettings(learning_rate=1e-2),
        )
    )  # fmt: skip
    assert losses == expected
    assert same_bits(ours, reference)


def test_packed_and_padded_training_agree_step_by_step():
    task = builtin_task("add_digits", count=20)

    def losses(packing):
        model = make_model()
        return losses_of(
            lambda manager: fit_sft(
                model, TOKENIZER, task, steps=5, batch_size=6, settings=SFTSettings(packing=packing), token_budget=40,
                optimizer=PLAIN, callbacks=manager,
            )
        )  # fmt: skip

    assert losses(True) == pytest.approx(losses(False), rel=1e-5)  # the norms inside the model are float32


@pytest.mark.parametrize("token_budget", [0, 1, 30])
def test_held_out_loss_is_the_token_mean_and_perplexity_its_exponential(token_budget):
    model, examples = make_model(), EXAMPLES["every message"]()
    expected = loss_by_definition(model, examples).item()
    scores = held_out_loss(model.train(), examples, token_budget)()
    assert scores == pytest.approx({"eval_loss": expected, "perplexity": math.exp(expected)}, rel=1e-12)
    assert model.training


def test_held_out_rows_are_scored_before_during_and_after():
    evals = []
    manager = CallbackManager()
    manager.on("eval_end")(lambda state, step_idx, eval_name, metrics: evals.append((step_idx, eval_name)))
    state = fit_sft(
        make_model(), TOKENIZER, TASK, steps=4, batch_size=2, held_out=HeldOut(FEW, run_every=3), callbacks=manager
    )
    assert evals == [(-1, "held_out"), (2, "held_out"), (3, "held_out")]
    assert state.metrics["held_out.perplexity"] == pytest.approx(math.exp(state.metrics["held_out.eval_loss"]))


def test_a_hopeless_loss_has_infinite_perplexity_and_no_error():
    model = make_model()
    with torch.no_grad():
        model.lm_head.weight.mul_(1e6)
    assert held_out_loss(model, EXAMPLES["answers"](), 0)()["perplexity"] == math.inf


def refused(rows, words, *, tokenizer=TOKENIZER, **options):
    manager, started = CallbackManager(), []
    manager.on("train_start")(lambda: started.append(1))
    with pytest.raises((TaskError, SupervisedError), match=words):
        fit_sft(make_model(), tokenizer, Task("mine", rows), steps=3, batch_size=2, callbacks=manager, **options)
    assert not started


def test_rows_that_cannot_be_learned_from_are_refused_before_the_first_step():
    good = TaskRow("1>", {"answer": "2"})
    refused([good, TaskRow("1>", {"anser": "2"})], "mine, row 1 has nothing in column 'answer'.*did you mean 'anser'")
    refused([good, TaskRow("1>", {"answer": None})], "mine, row 1 has nothing in column 'answer'")
    refused(
        [good, TaskRow("1" * 60 + ">", {"answer": "2222"})], r"mine, row 1: the prompt \(61 tokens\) and its answer"
    )
    refused([good, TaskRow("1" * 64, {"answer": "2"})], "row 1: the prompt has 64 tokens and fills the context of 64")
    refused(
        [good, TaskRow("123", {"answer": "45"})],
        r"row 1: .* more than the context of 5",
        settings=SFTSettings(max_length=5),
    )
    refused([good], "max_length=65 is more than the model's context of 64", settings=SFTSettings(max_length=65))
    refused([], "the task mine has no rows")
    refused(
        [good, TaskRow([{"role": "user", "content": "1"}])], "must end with the assistant's", tokenizer=chat_tokenizer()
    )


# -- pairs, for reward models and DPO

PAIRS = load_preferences(
    [
        {"prompt": "1+2>", "chosen": "3", "rejected": "45"},
        {"prompt": "9>", "chosen": "98765", "rejected": "1", "margin": 0.5},
        {"prompt": "1234567>", "chosen": "12", "rejected": "21"},
        {"prompt": "0>", "chosen": "0", "rejected": "1111", "margin": -1},
        {"prompt": "5 5>", "chosen": "55", "rejected": "5"},
    ]
)
BUDGETS = [0, 1, 45, 16_384]


def tokens_of(text):
    return TOKENIZER(text)["input_ids"]


def log_probs_alone(model):
    """The summed log-probability of each completion, by definition: chosen and rejected."""

    def one(pair, side):
        prompt, completion = tokens_of(pair.prompt), [*tokens_of(side), 1]
        distribution = model(input_ids=torch.tensor([prompt + completion])).logits[0].log_softmax(-1)
        places = range(len(prompt), len(prompt) + len(completion))
        return torch.stack([distribution[place - 1, (prompt + completion)[place]] for place in places]).sum()

    return [torch.stack([one(pair, getattr(pair, side)) for pair in PAIRS]) for side in ("chosen", "rejected")]


LENGTHS = [torch.tensor([len(getattr(pair, side)) + 1.0 for pair in PAIRS]).double() for side in ("chosen", "rejected")]


def by_definition(kind, model, reference_log_probs):
    log_probs = log_probs_alone(model)
    ratios = [ours - theirs.detach() for ours, theirs in zip(log_probs, reference_log_probs, strict=True)]
    if kind == "ipo":
        return ipo(*ratios, *LENGTHS, beta=0.2)
    return dpo_sigmoid(*ratios, beta=0.2, label_smoothing=0.1 if kind == "smoothed" else 0.0)


OPTIONS = {"sigmoid": {}, "smoothed": {"label_smoothing": 0.1}, "ipo": {"loss": "ipo"}}


@pytest.mark.parametrize("kind", OPTIONS)
@pytest.mark.parametrize("token_budget", BUDGETS)
def test_any_micro_batches_give_dpos_gradient_and_metrics(token_budget, kind):
    model, reference = make_model(), make_model(seed=1)
    outcome = by_definition(kind, model, log_probs_alone(reference))
    log_probs = log_probs_alone(model)
    expected = gradients_of(model, outcome.loss_N.mean())
    state = fit_dpo(
        model, TOKENIZER, PAIRS, steps=1, batch_size=5, settings=DPOSettings(beta=0.2, **OPTIONS[kind]),
        reference=reference, optimizer=PLAIN, token_budget=token_budget,
    )  # fmt: skip
    assert_same(gradients(model), expected)
    numbers = {
        "loss": outcome.loss_N.mean(),
        "accuracy": outcome.correct_N.mean(),
        "margin": outcome.margins_N.mean(),
        "chosen_reward": outcome.chosen_rewards_N.mean(),
        "rejected_reward": outcome.rejected_rewards_N.mean(),
        "chosen_log_prob": log_probs[0].mean(),
        "rejected_log_prob": log_probs[1].mean(),
    }
    for name, value in numbers.items():
        assert state.metrics[name] == pytest.approx(value.item(), rel=1e-12), name
    assert state.metrics["grad_norm"] > 0
    assert state.metrics["learning_rate"] == 1e-2


def test_without_a_reference_dpo_takes_the_log_probabilities_themselves():
    model = make_model()
    nothing = [torch.zeros(5).double()] * 2
    expected = gradients_of(model, by_definition("sigmoid", model, nothing).loss_N.mean())
    settings = DPOSettings(beta=0.2, reference_free=True)
    fit_dpo(model, TOKENIZER, PAIRS, steps=1, batch_size=5, settings=settings, optimizer=PLAIN)
    assert_same(gradients(model), expected)


def train_dpo(model, **options):
    options = {
        "steps": 3,
        "batch_size": 3,
        "epochs": 2,
        "settings": DPOSettings(beta=0.2),
        "optimizer": PLAIN,
        **options,
    }
    return losses_of(lambda manager: fit_dpo(model, TOKENIZER, PAIRS, callbacks=manager, **options))


def test_the_reference_is_the_model_as_it_was_at_the_start():
    ours, theirs = make_model(), make_model()
    frozen = copy.deepcopy(theirs).requires_grad_(False)
    losses = train_dpo(ours)
    assert losses == pytest.approx(train_dpo(theirs, reference=frozen), rel=1e-12)
    assert losses[0] == pytest.approx(math.log(2), rel=1e-12)
    assert same_bits(frozen, make_model())


class UnderContext(Reference):
    """The model itself, changed for as long as it is the reference."""

    def __init__(self, model, changed):
        self.model, self.changed = model, changed

    @contextmanager
    def active(self):
        with self.changed(self.model):
            yield self.model


def test_the_model_itself_can_be_the_reference_under_a_context():
    other = make_model(seed=1)

    @contextmanager
    def another_head(model):
        own = model.lm_head.weight.data
        model.lm_head.weight.data = other.lm_head.weight.data
        yield
        model.lm_head.weight.data = own

    # Only the trunk's output matters to what the reference says, so the trunk is frozen for this comparison.
    def fresh():
        model = make_model()
        model.model.requires_grad_(False)
        return model

    frozen = fresh()
    frozen.lm_head.weight.data = other.lm_head.weight.data
    expected = train_dpo(fresh(), reference=frozen)
    model = fresh()
    assert train_dpo(model, reference=UnderContext(model, another_head)) == pytest.approx(expected, rel=1e-12)


def test_the_reference_is_asked_once_for_each_pair():
    asked = []

    class Counting(ReferenceLogProbs):
        def _learn(self, places):
            asked.extend(places)
            super()._learn(places)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("proa.supervised.dpo.ReferenceLogProbs", Counting)
        train_dpo(make_model(), reference=make_model(seed=1))
        assert sorted(asked) == [0, 1, 2, 3, 4]
        asked.clear()
        train_dpo(make_model())
        assert sorted(asked) == [0, 1, 2, 3, 4]


def test_the_reference_is_measured_without_dropout_and_left_in_its_mode():
    model = load_model({**SIZES, "model_type": "llama"}, dtype="float64").train()
    pairs = tokenise_pairs(PAIRS, range(5), TOKENIZER, None)
    model.model.layers[0].register_forward_pre_hook(
        lambda module, args, kwargs: pytest.fail("in training mode") if module.training else None, with_kwargs=True
    )
    ReferenceLogProbs(model, None, pairs, 0)
    assert all(module.training for module in model.modules())


def test_an_adapter_is_trained_against_its_base():
    peft = pytest.importorskip("peft", reason="peft is not installed")
    model, base = make_model(), make_model()
    with torch.random.fork_rng(devices=[]):
        model.add_adapter(peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False))

    @contextmanager
    def adapter_off(model):
        model.disable_adapters()
        yield
        model.enable_adapters()

    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    reference = UnderContext(model, adapter_off)
    losses = train_dpo(model, reference=reference)
    assert losses[0] != pytest.approx(math.log(2), rel=1e-6)  # the adapter is not the base from the start
    changed = {name for name, parameter in model.named_parameters() if not torch.equal(parameter, before[name])}
    assert changed
    assert all("lora_" in name for name in changed)
    known = ReferenceLogProbs(model, reference, tokenise_pairs(PAIRS, range(5), TOKENIZER, None), 0)
    torch.testing.assert_close(known.of(range(5)), torch.stack(log_probs_alone(base)).detach(), **EXACT)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"settings": DPOSettings(reference_free=True), "reference": lambda: None}, "reference_free has no reference"),
        (
            {"settings": DPOSettings(max_length=9)},
            r"preference pair 2: the prompt \(8 tokens\) and its chosen completion \(3\)",
        ),
        (
            {"settings": DPOSettings(max_length=8)},
            "preference pair 2: the prompt has 8 tokens and fills the context of 8",
        ),
        ({"pairs": []}, "there is nothing to learn from"),
        (
            {"held_out": HeldOut([PreferencePair("1" * 64, "2", "3")])},
            "eval pair 0: the prompt has 64 tokens and fills",
        ),
    ],
)
def test_what_dpo_cannot_use_is_refused_before_the_first_step(options, words):
    manager, started = CallbackManager(), []
    manager.on("train_start")(lambda: started.append(1))
    arguments = {"pairs": PAIRS, "steps": 4, "batch_size": 2, "callbacks": manager, **options}
    with pytest.raises((SupervisedError, TaskError), match=words):
        fit_dpo(make_model(), TOKENIZER, **arguments)
    assert not started


def scores_alone(model):
    def one(pair, side):
        tokens = torch.tensor([[*tokens_of(pair.prompt), *tokens_of(getattr(pair, side)), 1]])
        return model(input_ids=tokens).logits[0, 0]

    return [torch.stack([one(pair, side) for pair in PAIRS]) for side in ("chosen", "rejected")]


MARGINS = torch.tensor([0.0, 0.5, 0.0, -1.0, 0.0]).double()


@pytest.mark.parametrize("token_budget", BUDGETS)
def test_any_micro_batches_give_the_reward_models_gradient_and_metrics(token_budget):
    model = make_reward_model()
    outcome = bradley_terry(*scores_alone(model), MARGINS)
    expected = gradients_of(model, outcome.loss_N.mean())
    state = fit_reward_model(model, TOKENIZER, PAIRS, steps=1, batch_size=5, optimizer=PLAIN, token_budget=token_budget)
    assert_same(gradients(model), expected)
    assert state.metrics["loss"] == pytest.approx(outcome.loss_N.mean().item(), rel=1e-12)
    assert state.metrics["accuracy"] == outcome.correct_N.mean().item()
    for name, values in (
        ("margin", outcome.margins_N),
        ("chosen_reward", outcome.chosen_rewards_N),
        ("rejected_reward", outcome.rejected_rewards_N),
    ):
        assert state.metrics[name] == pytest.approx(values.mean().item(), rel=1e-12)


def held_out_scores(model, pairs=PAIRS, trains=True, **options):
    """What the evaluator said before the first step; where no step trains, that is all it says."""
    evals, manager = [], CallbackManager()
    manager.on("eval_end")(lambda step_idx, metrics: evals.append((step_idx, metrics)))
    fit = fit_reward_model if hasattr(model, "score") else fit_dpo
    with nullcontext() if trains else pytest.raises(NothingToTrainOnError):
        fit(model, TOKENIZER, PAIRS, steps=2, batch_size=2, held_out=HeldOut(pairs), callbacks=manager, **options)
    assert [step for step, _ in evals] == ([-1, 1] if trains else [-1])
    return evals[0][1]


def test_held_out_pairs_are_scored_by_accuracy_loss_and_calibration():
    model = make_reward_model()
    outcome = bradley_terry(*scores_alone(model), MARGINS)
    expected = {
        "accuracy": outcome.correct_N.mean(),
        "margin": outcome.margins_N.mean(),
        "eval_loss": outcome.loss_N.mean(),
        "calibration_error": calibration_error(outcome.margins_N),
        "brier_score": brier_score(outcome.margins_N),
    }
    scores = held_out_scores(model, token_budget=45)
    assert scores == pytest.approx({name: value.item() for name, value in expected.items()}, rel=1e-12)


def test_pairs_without_a_number_are_left_out_of_the_scores_and_counted():
    model = make_reward_model()
    with torch.no_grad():
        model.model.embed_tokens.weight[tokens_of(" ")] = torch.nan  # only the last pair has a blank
    model.score.requires_grad_(True)
    outcome = bradley_terry(*(scores[:4] for scores in scores_alone(model)), MARGINS[:4])
    scores = held_out_scores(model, optimizer=OptimizerSettings(learning_rate=1e-9))
    assert scores["nan_pairs"] == 1.0
    assert scores["eval_loss"] == pytest.approx(outcome.loss_N.mean().item(), rel=1e-12)
    assert scores["brier_score"] == pytest.approx(brier_score(outcome.margins_N).item(), rel=1e-12)
    with torch.no_grad():
        model.score.weight.fill_(torch.nan)
    scores = held_out_scores(model, trains=False)
    assert scores.pop("nan_pairs") == 5.0
    assert all(math.isnan(value) for value in scores.values())


def test_dpo_scores_held_out_pairs_against_the_same_reference():
    model, reference = make_model(), make_model(seed=1)
    outcome = by_definition("sigmoid", model, log_probs_alone(reference))
    scores = held_out_scores(model, settings=DPOSettings(beta=0.2), reference=reference)
    expected = {"accuracy": outcome.correct_N, "margin": outcome.margins_N, "eval_loss": outcome.loss_N}
    assert scores == pytest.approx({name: values.mean().item() for name, values in expected.items()}, rel=1e-12)


def test_a_language_model_is_no_reward_model():
    with pytest.raises(SupervisedError, match="make a reward model of it with build_reward_model"):
        fit_reward_model(make_model(), TOKENIZER, PAIRS, steps=1)


# -- what all three do

FITS = {
    "sft": lambda model, **options: fit_sft(model, TOKENIZER, TASK, **options),
    "reward_model": lambda model, **options: fit_reward_model(model, TOKENIZER, PAIRS, **options),
    "dpo": lambda model, **options: fit_dpo(model, TOKENIZER, PAIRS, **options),
}
RECIPES = pytest.mark.parametrize("recipe", FITS)


def model_for(recipe, dtype="float32"):
    return make_reward_model(dtype) if recipe == "reward_model" else make_model(dtype)


def fit(recipe, model=None, *, scored=(), **options):
    """A short training; `scored` is when and as what two rows or pairs are."""
    model = model_for(recipe) if model is None else model
    held_out = HeldOut(FEW if recipe == "sft" else PAIRS[:2], **dict(scored))
    options = {"steps": 3, "batch_size": 2, "optimizer": OptimizerSettings(learning_rate=1e-3), **options}
    return FITS[recipe](model, held_out=held_out, **options)


def saver(save_every=2):
    return SaveFunction(lambda name, state: ManifestRow(name, state.global_step - 1, state.epoch), save_every)


EVENTS = [
    "train_start", "train_end", "epoch_start", "epoch_end", "step_start", "step_end", "eval_start", "eval_end",
    "checkpoint_saved", "error",
]  # fmt: skip


@RECIPES
def test_all_ten_events_reach_a_plain_function(recipe):
    heard, manager = [], CallbackManager()
    for event in EVENTS:
        manager.on(event)(lambda state, event=event: heard.append(event))

    @manager.on("step_end")
    def fail(step_idx):
        if step_idx == 3:
            raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        fit(recipe, epochs=2, callbacks=manager, saver=saver(), scored={"run_every": 2})
    step, evaluation = ["step_start", "step_end"], ["eval_start", "eval_end"]
    assert heard == [
        "train_start", *evaluation, "epoch_start", *step, *step, *evaluation, "checkpoint_saved", *step, "epoch_end",
        "epoch_start", *step, "epoch_end", "error", "train_end",
    ]  # fmt: skip


@RECIPES
def test_training_stops_when_asked_to(recipe, tmp_path):
    manager, ends = CallbackManager(), []
    manager.on("step_end")(lambda state: state.stop_training("enough") if state.global_step == 2 else None)
    manager.on("train_end")(lambda artifacts: ends.append(artifacts))
    state = fit(recipe, epochs=2, callbacks=manager, saver=saver(0), output_dir=tmp_path)
    assert (state.global_step, state.stop_reason) == (2, "enough")
    assert (ends[0].steps_run, ends[0].total_requested_steps, ends[0].run_dir) == (2, 6, tmp_path)
    assert [row.name for row in ends[0].checkpoints] == ["final"]


@RECIPES
def test_steps_are_counted_over_epochs_and_the_optimizer_takes_as_many(recipe):
    model = model_for(recipe)
    optimizer = Optimizer(model.named_parameters(), PLAIN, 6)
    state = fit(recipe, model, epochs=2, optimizer=optimizer)
    assert (state.global_step, state.epoch, state.num_epochs, optimizer.steps) == (6, 1, 2, 6)
    assert {"loss", "grad_norm", "learning_rate"} <= state.metrics.keys()


@RECIPES
def test_without_steps_an_epoch_is_one_pass(recipe):
    assert fit(recipe, steps=None, epochs=2).global_step == 2 * 3  # five rows, two at a time


@RECIPES
def test_each_epoch_has_its_own_order(recipe):
    def read(batch, metrics):
        return batch.data.sequences.tolist() if recipe == "sft" else batch.data.places

    manager, batches = at_each_step("batch", read)
    fit(recipe, epochs=3, callbacks=manager)
    assert batches[:3] != batches[3:6] != batches[6:9]


@RECIPES
def test_a_seed_gives_the_same_bits_and_another_seed_others_and_torchs_generator_is_left_alone(recipe):
    models = [model_for(recipe) for _ in range(3)]
    before = torch.default_generator.get_state()
    for model, seed in zip(models, (1, 1, 2), strict=True):
        fit(recipe, model, seed=seed)
    assert torch.equal(torch.default_generator.get_state(), before)
    assert same_bits(models[0], models[1])
    assert not same_bits(models[0], models[2])


@RECIPES
def test_only_what_requires_a_gradient_is_trained(recipe):
    model = model_for(recipe)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("q_proj" in name)
    before = copy.deepcopy(model)
    fit(recipe, model)
    changed = {
        name
        for (name, one), other in zip(model.named_parameters(), before.parameters(), strict=True)
        if not torch.equal(one, other)
    }
    assert changed == {"model.layers.0.self_attn.q_proj.weight"}


@RECIPES
def test_a_loss_that_is_no_number_is_skipped_and_counted(recipe):
    model = model_for(recipe)
    broken = {"at": 1, "step": 0}

    def poison(module, inputs, output):
        return (output[0] * math.nan, *output[1:]) if broken["step"] == broken["at"] else output

    model.model.layers[0].self_attn.register_forward_hook(poison)
    optimizer = Optimizer(model.named_parameters(), PLAIN, 3)
    manager, seen = CallbackManager(), []

    @manager.on("step_end")
    def watch(step_idx, metrics):
        seen.append((math.isnan(metrics["loss"]), metrics.get("skipped", 0.0)))
        broken["step"] = step_idx + 1

    fit(recipe, model, optimizer=optimizer, callbacks=manager)
    assert seen == [(False, 0.0), (True, 1.0), (False, 0.0)]
    assert (optimizer.skipped_steps, optimizer.steps) == (1, 3)
    assert all(parameter.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_no_number_is_skipped_although_its_gradient_is_one(loss):
    parameter = torch.nn.Parameter(torch.ones(2))

    class Step(SupervisedStep):
        def find_gradients(self, batch):
            parameter.grad = torch.ones(2)
            return {"loss": batch.data}

    step = Step(Optimizer([("weight", parameter)], PLAIN, 2))
    assert step(TrainingBatch(loss))["skipped"] == 1.0
    assert torch.equal(parameter, torch.ones(2))
    assert "skipped" not in step(TrainingBatch(1.0))


@RECIPES
def test_evaluators_of_the_user_run_beside_the_held_out_ones(recipe):
    state = fit(recipe, evaluators=[ScoreFunction("mine", lambda: {"x": 7.0})])
    assert state.metrics["mine.x"] == 7.0
    assert "held_out.eval_loss" in state.metrics
    assert "test.eval_loss" in fit(recipe, scored={"name": "test"}).metrics


@RECIPES
def test_gradients_are_shown_before_they_are_clipped_and_followed(recipe):
    manager, seen = CallbackManager(), []

    @manager.on("gradients_ready")
    def look(state, gradients):
        squares = sum(float(gradient.square().sum()) for gradient in gradients.values())
        seen.append((state.global_step, squares**0.5, sorted(gradients)))

    norms = {}
    manager.on("step_end")(lambda step_idx, metrics: norms.update({step_idx: metrics["grad_norm"]}))
    fit(recipe, steps=2, callbacks=manager, optimizer=OptimizerSettings(learning_rate=1e-2, max_grad_norm=1e-3))
    assert [step for step, _, _ in seen] == [0, 1]
    for step, norm, names in seen:
        assert norm == pytest.approx(norms[step], rel=1e-5)
        assert norm > 1e-3
        assert "model.layers.0.mlp.up_proj.weight" in names


def test_batches_name_their_loss():
    manager, seen = at_each_step("loss_fn", lambda batch, metrics: (batch.loss_fn, batch.loss_fn_config.get("beta")))
    for recipe in FITS:
        fit(recipe, steps=1, callbacks=manager)
    fit("dpo", steps=1, settings=DPOSettings(loss="ipo", beta=0.3), callbacks=manager)
    assert seen == [("cross_entropy", None), ("bradley_terry", None), ("dpo_sigmoid", 0.1), ("ipo", 0.3)]


# -- learning


def the_larger_digit_is_preferred(count, seed, *, flipped=False):
    generator = torch.Generator().manual_seed(seed)
    pairs = []
    while len(pairs) < count:
        prompt, one, other = torch.randint(10, (3,), generator=generator).tolist()
        if one != other:
            chosen, rejected = (str(digit) for digit in sorted((one, other), reverse=not flipped))
            pairs.append(PreferencePair(f"{prompt}>", chosen, rejected))
    return pairs


FAST = OptimizerSettings(learning_rate=1e-2)


def test_a_reward_model_learns_a_rule():
    model = build_reward_model(make_model("float32", scale=1.0), seed=0)
    state = fit_reward_model(
        model, TOKENIZER, the_larger_digit_is_preferred(200, seed=1), steps=60, batch_size=16, optimizer=FAST,
        held_out=HeldOut(the_larger_digit_is_preferred(100, seed=2)),
    )  # fmt: skip
    assert state.metrics["held_out.accuracy"] > 0.9
    assert state.metrics["held_out.brier_score"] < 0.1
    wrong = the_larger_digit_is_preferred(100, seed=2, flipped=True)
    assert held_out_scores(model, wrong)["accuracy"] < 0.1


@pytest.mark.parametrize("loss", ["sigmoid", "ipo"])
def test_dpo_raises_accuracy_and_margin_on_held_out_pairs(loss):
    evals, manager = [], CallbackManager()
    manager.on("eval_end")(lambda metrics: evals.append(metrics))
    fit_dpo(
        make_model("float32", scale=1.0), TOKENIZER, the_larger_digit_is_preferred(200, seed=1), steps=60,
        batch_size=16, optimizer=FAST, settings=DPOSettings(loss=loss), callbacks=manager,
        held_out=HeldOut(the_larger_digit_is_preferred(100, seed=2)),
    )  # fmt: skip
    before, after = evals
    assert before["margin"] == pytest.approx(0.0, abs=1e-4)
    assert after["accuracy"] > max(0.9, before["accuracy"])
    assert after["margin"] > 0.1


def test_sft_learns_a_rule():
    state = fit_sft(
        make_model("float32", scale=1.0), TOKENIZER,
        load_task([{"prompt": f"{digit}>", "answer": str(9 - digit)} for digit in range(10)]),
        steps=80, batch_size=10, settings=SFTSettings(packing=True), optimizer=OptimizerSettings(learning_rate=2e-2),
    )  # fmt: skip
    assert state.metrics["loss"] < 0.1
