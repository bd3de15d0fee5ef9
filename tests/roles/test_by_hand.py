"""Topologies by hand: shipped trainers and makers, built from what a person has, that find each other by name."""

import logging
import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from tests.engines.prompted import Prompted, generated
from tests.learning.ranks import Seat, Table
from tests.small import MODEL

from proa import (
    DetachedGRPOTrainer,
    DetachedPPOTrainer,
    ExperienceMakerHolder,
    MakerCallback,
    Prompt,
    Sampling,
    Weights,
    build_engine,
)
from proa.actors.finding import ActorLostError
from proa.actors.waiting import WaitTimeoutError
from proa.data.experience import BufferItem, Experience
from proa.errors import NothingToTrainOnError, SettingError
from proa.policy.models import load_model, save_model, weights_digest
from proa.roles.named_makers import MakersLostError
from proa.rollouts import SingleTurn
from proa.tasks.builtin import builtin_task
from proa.tasks.builtin.characters import tokenizer as make_tokenizer

LORA = {"rank": 2, "alpha": 8.0, "target_modules": ("q_proj", "v_proj")}
GROUP, PROMPTS, BATCH = 4, 2, 8
TASK = builtin_task("sort_digits", count=64)


@pytest.fixture(autouse=True)
def one_thread():
    """Trainers and makers are threads here, and the models so small that more threads for each are slower."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def sevens(completions, **_):
    """The share of a completion that is the digit 7."""
    return [text.count("7") / max(1, len(text)) for text in completions]


def trainer(makers=(), *, kind=DetachedGRPOTrainer, find=None, **more):
    settings = {"learning_rate": 2e-2, "train_batch_size": BATCH, "wait_timeout": 60.0, "find_maker": find, **more}
    return kind(list(makers), MODEL, **settings)


def maker(trainers=("trainer_0",), *, find=None, **more):
    settings = {"task": TASK, "reward": sevens, "prompts_per_batch": PROMPTS, "group_size": GROUP,
                "max_new_tokens": 4, "wait_timeout": 60.0, "find_trainer": find, **more}  # fmt: skip
    return ExperienceMakerHolder(list(trainers), MODEL, **settings)


class Hall:
    """Trainers and makers by name, in threads; several trainers train one policy."""

    def __init__(self, trainers, makers, *, kind=DetachedGRPOTrainer, steps=4, lora=None, **more):
        self.steps, self.actors = steps, {}
        table, find = Table(trainers), self.actors.__getitem__
        trainer_names = [f"trainer_{number}" for number in range(trainers)]
        maker_names = [f"maker_{number}" for number in range(makers)]

        def build(number):
            seat = Seat(table, number) if trainers > 1 else None
            return trainer(
                maker_names, kind=kind, find=find, replicas=seat, name=trainer_names[number], lora=lora, **more
            )

        with ThreadPoolExecutor(trainers) as pool:
            self.trainers = list(pool.map(build, range(trainers)))
        self.makers = [maker(trainer_names, find=find, name=name, lora=lora) for name in maker_names]
        self.actors |= {one.name: one for one in (*self.trainers, *self.makers)}

    def run(self, update_steps=1):
        """Makers make just what trainers need."""
        batches, rest = divmod(self.steps * BATCH * len(self.trainers), PROMPTS * GROUP * len(self.makers))
        assert not rest, "nobody is left with something that nobody takes"
        with ThreadPoolExecutor(len(self.actors)) as pool:
            calls = [pool.submit(one.fit, self.steps, update_steps) for one in self.trainers]
            calls += [pool.submit(one.workingloop, num_steps=batches) for one in self.makers]
            for call in calls:
                call.result(120)
        return self


def says(engine, version=0):
    """What an engine says, to the bit: it follows from its weights."""
    completions = generated(engine, [Prompted((6, 7, 8, 3), (1, 2, 3))], Sampling(3, 6), version)[0]
    return [(one.tokens.tolist(), one.log_probs.tolist()) for one in completions]


def said_by(maker):
    return says(maker.engine, max(0, maker.loaded_version))


def engine_of(policy):
    engine = build_engine("native", load_model(MODEL), end_ids=[1])
    engine.load(policy.whole(), 0)
    return engine


@pytest.mark.parametrize(
    ("kind", "trainers", "makers", "lora"),
    [
        (DetachedGRPOTrainer, 1, 1, None), (DetachedGRPOTrainer, 2, 2, None), (DetachedGRPOTrainer, 1, 4, LORA),
        (DetachedGRPOTrainer, 2, 1, LORA), (DetachedPPOTrainer, 1, 1, LORA), (DetachedPPOTrainer, 2, 2, LORA),
        (DetachedPPOTrainer, 1, 4, None), (DetachedPPOTrainer, 2, 1, None),
    ],
)  # fmt: skip
def test_makers_follow_the_weights_that_their_trainers_push(kind, lora, trainers, makers):
    hall = Hall(trainers, makers, kind=kind, lora=lora).run(update_steps=2)
    assert [one.state.policy_version for one in hall.trainers] == [2] * trainers
    assert [one.get_policy_version() for one in hall.makers] == [2] * makers
    trained = [one.policy for one in hall.trainers]
    assert len({weights_digest(policy.weights()) for policy in trained}) == 1
    expected = says(engine_of(trained[0]))
    assert expected != says(engine_of(trainer(lora=lora).policy))
    assert [said_by(one) for one in hall.makers] == [expected] * makers
    for one in hall.trainers:
        ledger = one.source.ledger
        assert ledger.closes
        assert (ledger.leased, ledger.buffered, ledger.in_flight) == (hall.steps * BATCH, 0, 0)


def test_two_trainers_take_the_step_that_one_takes_on_both_batches():
    """Each has half of the samples; together they compute the gradient of all."""

    def samples(ordinals):
        prompts = [Prompt(ordinal, (6 + ordinal, 7, 8, 3), "678>", {"answer": "678"}) for ordinal in ordinals]
        return maker().make(prompts, [tuple(range(10 * ordinal, 10 * ordinal + GROUP)) for ordinal in ordinals])

    halves = [samples((0, 1)), samples((2, 3))]
    one = trainer(train_batch_size=2 * BATCH, dtype="float64")
    one.buffer_extend(halves[0] + halves[1])
    one.fit(1, 1)
    table = Table(2)
    with ThreadPoolExecutor(2) as pool:
        two = list(pool.map(lambda rank: trainer(replicas=Seat(table, rank), dtype="float64"), range(2)))
        for part, half in zip(two, halves, strict=True):
            part.buffer_extend(half)
        list(pool.map(lambda part: part.fit(1, 1), two))
    expected = dict(one.policy.model.named_parameters())
    before = dict(trainer(dtype="float64").policy.model.named_parameters())
    for part in two:
        for name, parameter in part.policy.model.named_parameters():
            torch.testing.assert_close(parameter, expected[name], rtol=1e-9, atol=1e-12)
            assert not torch.equal(parameter, before[name]) or name.endswith("bias")


@pytest.mark.parametrize("lora", [None, {"rank": 8, "alpha": 64.0}], ids=["full", "lora"])
@pytest.mark.parametrize("kind", [DetachedGRPOTrainer, DetachedPPOTrainer])
def test_reward_rises(kind, lora, tmp_path):
    model, actors = load_model(MODEL), {}
    with torch.no_grad():
        model.lm_head.weight *= 40  # a frozen head that is nearly 0 could not say anything with confidence
    save_model(model, make_tokenizer(), tmp_path)
    own = actors["trainer_0"] = kind(
        ["maker_0"], tmp_path, lora=lora, learning_rate=1e-2 if lora else 5e-3, train_batch_size=16,
        find_maker=actors.__getitem__,
    )  # fmt: skip
    made = actors["maker_0"] = ExperienceMakerHolder(
        ["trainer_0"], tmp_path, lora=lora, task=TASK, reward=sevens, prompts_per_batch=4, group_size=4,
        max_new_tokens=4, find_trainer=actors.__getitem__,
    )  # fmt: skip
    rewards = []
    own.manager.on("step_end")(lambda metrics: rewards.append(metrics["reward"]))
    for _ in range(16):  # by turns, so that nothing depends on who is faster
        made.workingloop(num_steps=1)
        own.fit(1, 1)
    assert made.get_policy_version() == 16
    assert rewards[0] < 0.2
    assert sum(rewards[-3:]) / 3 > 0.35  # half of the tokens is a place where some seeds rest


def test_sync_before_fit_brings_version_0_and_fit_goes_on_from_there():
    hall = Hall(1, 1)
    hall.actors["maker_0"] = hall.makers[0] = maker(find=hall.actors.__getitem__, name="maker_0", seed=7)
    assert said_by(hall.makers[0]) != says(engine_of(hall.trainers[0].policy))
    hall.trainers[0].sync_models_to_remote_makers()
    assert said_by(hall.makers[0]) == says(engine_of(hall.trainers[0].policy))
    assert (hall.makers[0].get_policy_version(), hall.trainers[0].state.policy_version) == (0, 0)
    hall.run()
    hall.run()  # versions go on counting
    assert hall.makers[0].get_policy_version() == hall.trainers[0].state.policy_version == 8


def test_a_full_update_brings_the_base_of_an_adapter():
    hall = Hall(1, 1, lora=LORA)
    other_base = maker(find=hall.actors.__getitem__, name="maker_0", lora=LORA, seed=7)
    hall.actors["maker_0"] = hall.makers[0] = other_base
    hall.trainers[0].sync_models_to_remote_makers()
    hall.run()
    assert said_by(other_base) == says(engine_of(hall.trainers[0].policy))


def test_a_maker_that_is_gone_is_left_out_and_without_any_the_push_fails():
    class Gone:
        def update_experience_maker(self, weights, base=None):
            raise ActorLostError("the actor is gone: it was killed")

    lost = []
    hall = Hall(1, 2)
    hall.actors["maker_1"] = Gone()
    hall.trainers[0].manager.on("maker.lost")(lambda maker, reason: lost.append((maker, reason)))
    hall.trainers[0].sync_models_to_remote_makers()
    hall.trainers[0].sync_models_to_remote_makers()
    assert lost == [("maker_1", "the actor is gone: it was killed")]
    hall.actors["maker_0"] = Gone()
    alone = trainer(["maker_0", "maker_1"], find=hall.actors.__getitem__)
    with pytest.raises(MakersLostError, match="all makers are gone: maker_0, maker_1"):
        alone.sync_models_to_remote_makers()


def test_a_maker_waits_for_the_first_push_if_asked():
    waiting = maker(sync_models_from_trainers=True, wait_timeout=0.0, find=lambda name: None)
    with pytest.raises(WaitTimeoutError, match="maker_0 waited 0 s for weights, and none came"):
        waiting.workingloop(num_steps=1)
    pushed = []
    waiting = maker(sync_models_from_trainers=True, find=lambda name: pushed)
    waiting.update_experience_maker(Weights.of(3, load_model(MODEL, seed=1).state_dict()))
    pushed = type("Trainer", (), {"buffer_extend": lambda self, items: items})()
    waiting.workingloop(num_steps=1)
    assert waiting.state.global_step == 1


def test_weights_travel_as_bytes_and_come_back():
    before = Weights.of(4, load_model(MODEL).state_dict())
    after = pickle.loads(pickle.dumps(before))
    after.check()
    assert (after.version, after.digest) == (4, before.digest)


# -- what a person has ---------------------------------------------------------------------------------------------


def test_a_model_folder_brings_its_tokenizer(tmp_path):
    save_model(load_model(MODEL, seed=3), make_tokenizer(), tmp_path / "model")
    made = ExperienceMakerHolder(["t"], tmp_path / "model", reward=sevens, name="m", num_return_sequences=2)
    assert made.rollout.sampling == Sampling(group_size=2)
    own = DetachedGRPOTrainer([], tmp_path / "model", optimizer={"learning_rate": 1e-3, "schedule": "cosine"})
    own.save_model(tmp_path / "saved")
    assert says(ExperienceMakerHolder([], tmp_path / "saved", reward=sevens).engine) == says(made.engine)


def test_a_rollout_of_ones_own_needs_no_reward_and_keeps_its_sampling():
    own = SingleTurn(make_tokenizer(), Sampling(group_size=3))
    made = ExperienceMakerHolder(["t"], MODEL, make_tokenizer(), rollout=own)
    assert made.rollout is own
    with pytest.raises(SettingError, match="has its own sampling settings: leave out temperature"):
        ExperienceMakerHolder(["t"], MODEL, make_tokenizer(), rollout=own, temperature=0.5)


def test_prompts_come_in_any_form():
    sent = []
    target = type("Trainer", (), {"buffer_extend": lambda self, items: sent.append(items[0])})()
    made = maker(find=lambda name: target, task=None, tokenizer=make_tokenizer(), group_size=1)
    tokens = make_tokenizer()("31>")["input_ids"]
    padded = torch.tensor([[0, *tokens], [*tokens, 4]])
    batches = [
        ["31>"],
        [{"prompt": "31>", "answer": "13"}],
        [tokens],
        [torch.tensor(tokens)],
        torch.tensor([[0, 0, *tokens]]),
        {"input_ids": padded, "attention_mask": torch.tensor([[0, 1, 1, 1], [1, 1, 1, 0]])},
        [Prompt(5, tuple(tokens), "31>")],
    ]
    made.workingloop(lambda: batches)
    assert [item.sequences[: item.prompt_length].tolist() for item in sent] == [tokens] * 8
    assert len({item.group_id for item in sent}) == 8
    assert all(item.group_id.startswith("maker_0/") for item in sent)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: maker(maxnew_tokens=3), "a maker has no setting 'maxnew_tokens'; did you mean 'max_new_tokens'"),
        (lambda: ExperienceMakerHolder(["t"]), "a maker needs a model: give its folder or its configuration"),
        (lambda: ExperienceMakerHolder(["t"], MODEL, reward=sevens), "a maker needs a tokenizer"),
        (lambda: ExperienceMakerHolder(["t"], MODEL, make_tokenizer()), "nobody scores what this maker makes"),
        (lambda: maker(()).workingloop(num_steps=1), "maker_0 has nobody to send to"),
        (lambda: maker(task=None, tokenizer=make_tokenizer()).workingloop(), "maker_0 has no prompts"),
        (lambda: maker().workingloop(lambda: ["31>"]), r"a batch is a list of prompts, not '31>': write \['31>'\]"),
        (lambda: maker().workingloop(lambda: [[3.5]]), "prompt 0 is 3.5: give a text, chat messages"),
        (lambda: trainer(optimizer={"learningrate": 1}), "optimizer has no setting 'learningrate'; did you mean"),
        (lambda: trainer(lora={"rnak": 1}), "lora has no setting 'rnak'; did you mean 'rank'"),
        (lambda: trainer(kind=DetachedPPOTrainer, critic="shraed"), "critic='shraed': write 'shared', 'separate'"),
        (lambda: trainer(env_info={"rank": 2, "world_size": 2}), "env_info is {rank, world_size, master_addr"),
    ],
)
def test_mistakes_are_told_in_the_users_words(build, message):
    with pytest.raises(SettingError, match=message):
        build()


def test_groups_that_a_batch_would_divide_are_refused():
    own = trainer(train_batch_size=6)
    made = maker().make([Prompt(0, (6, 7, 3), "01>", {"answer": "01"})], [(1, 2, 3, 4)])
    with pytest.raises(SettingError, match="a group of 4 samples came, and train_batch_size=6 is not a multiple"):
        own.buffer_extend(made)


def test_samples_without_a_reward_are_left_out_and_counted():
    def half(completions, **_):
        return [None if place % 2 else float(place) for place in range(len(completions))]

    def broken(completions, **_):
        raise ValueError("no scorer today")

    own = trainer(train_batch_size=GROUP)
    prompt = Prompt(0, (6, 7, 3), "01>", {"answer": "01"})
    own.buffer_extend(maker(reward=half).make([prompt], [(1, 2, 3, 4)]))
    own.fit(1, 1)
    assert own.source.ledger.as_dict()["dropped"] == {"reward_failed": 2}
    assert own.source.ledger.trained == 2
    own = trainer(train_batch_size=GROUP)
    for ordinal in range(4):
        own.buffer_extend(maker(reward=broken).make([replace(prompt, ordinal=ordinal)], [(1, 2, 3, 4)]))
    with pytest.raises(NothingToTrainOnError, match="no scorer today"):
        own.fit(4, 1)


def test_experience_with_advantages_of_its_own_is_not_filtered():
    own = trainer(train_batch_size=2)
    rows = [BufferItem(torch.tensor([6, 7, 3, 8]), torch.tensor([-1.0]), advantages=torch.tensor([1.0]))] * 2
    own.buffer_extend(rows)
    own.fit(1, 1)
    assert own.source.ledger.trained == 2
    assert isinstance(own.batch_in_step, Experience)


def test_a_schedule_follows_the_steps_of_fit():
    own = trainer(train_batch_size=2, optimizer={"learning_rate": 1.0, "schedule": "linear"}, learning_rate=1e-3)
    rows = [BufferItem(torch.tensor([6, 7, 3, 8]), torch.tensor([-1.0]), advantages=torch.tensor([1.0]))] * 8
    own.buffer_extend(rows)
    rates = []
    own.manager.on("step_end")(lambda metrics: rates.append(metrics["learning_rate"]))
    own.fit(4, 1)
    assert rates == pytest.approx([1e-3, 0.75e-3, 0.5e-3, 0.25e-3])


def test_debug_shows_steps_waits_and_pushes(caplog):
    hall = Hall(1, 1, steps=1, debug=True)
    with caplog.at_level(logging.INFO):
        hall.run()
    said = "\n".join(record.message for record in caplog.records)
    for words in ("trainer_0: step 0: {'loss'", "trainer_0: version 1 is pushed to maker_0"):
        assert words in said


def test_what_is_made_before_any_weights_came_is_of_the_weights_that_the_engine_came_with():
    class Doubled(MakerCallback):
        def on_make_experience_end(self, experience):
            experience.reward = experience.reward * 2

    items = maker(callbacks=[Doubled()]).make([Prompt(0, (6, 7, 3), "01>", {"answer": "01"})], [(1, 2, 3, 4)])
    assert {version for item in items for version in item.versions.tolist()} == {0}
    assert all(item.sampled_length == item.action_length > 0 for item in items)
