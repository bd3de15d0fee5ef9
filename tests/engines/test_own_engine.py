"""An engine from outside, in one file, this one: it needs what an engine is told, and what it tells."""

import importlib.metadata
import json

import pytest
import torch
from tests.digests import StopAfter
from tests.small import DETACHED

from proa import recipes
from proa.config import ConfigError, RunConfig, load_run_config
from proa.config.sections import GIVEN, EngineSection
from proa.engines import EngineBusyError, ModelDescription, Progress, Request, build_engine, generate
from proa.errors import SettingError
from proa.policy.models import load_model

PATH = "tests.engines.test_own_engine:OneByOne"
made = []
"""The settings of every engine that was made."""


class OneByOne:
    """Computes every sequence from its first token on, alone, for every token: slow, and plain to see that it is right.

    It takes no requests that continue others, and keeps no cache.
    """

    is_independent = True

    def __init__(self, description: ModelDescription, *, patience: int = 1) -> None:
        made.append(patience)
        self.context_length = description.config.max_position_embeddings
        self.versions: tuple[int, ...] = ()
        self._ends, self._model = description.end_ids, description.empty_model()
        self._running: dict[str, tuple[Request, list[int], torch.Generator]] = {}

    @property
    def free(self) -> int:
        return 8 - len(self._running)

    def submit(self, request: Request) -> None:
        chance = torch.Generator().manual_seed(request.seed % 2**63)
        self._running[request.id] = (request, list(request.tokens), chance)

    @torch.inference_mode()
    def step(self) -> list[Progress]:
        return [self._advance(*one) for one in list(self._running.values())]

    def _advance(self, request: Request, tokens: list[int], chance: torch.Generator) -> Progress:
        log_probs_V = self._log_probs(tokens)[-1] / request.sampling.temperature
        log_probs_V = log_probs_V.log_softmax(-1)
        token = int(torch.multinomial(log_probs_V.exp(), 1, generator=chance))
        tokens.append(token)
        is_long = len(tokens) - len(request.tokens) == request.sampling.max_new_tokens
        reason = "stop" if token in self._ends | request.stops else "length" if is_long else None
        if reason is not None:
            del self._running[request.id]
        return Progress(request.id, (token,), (float(log_probs_V[token]),), request.version, reason)

    def _log_probs(self, tokens) -> torch.Tensor:
        return self._model(torch.tensor([list(tokens)])).logits[0].float().log_softmax(-1)

    def cancel(self, request_id: str) -> None:
        self._running.pop(request_id, None)

    @torch.inference_mode()
    def score(self, sequences):
        return [self._log_probs(one[:-1]).gather(-1, torch.tensor(one[1:])[:, None])[:, 0] for one in sequences]

    def load(self, weights, version: int) -> None:
        if self._running:
            raise EngineBusyError(f"version {version} has to wait for what is decoded")
        self._model.load_state_dict(dict(weights), strict=False)
        self.versions = (version,)

    def sleep(self) -> None:
        pass


@pytest.fixture(autouse=True)
def _forget():
    made.clear()


@pytest.fixture
def plugin(monkeypatch):
    def entry_points(*, group):
        values = {"one_by_one": PATH} if group == "proa.engines" else {}
        return [importlib.metadata.EntryPoint(name, value, group) for name, value in values.items()]

    monkeypatch.setattr("proa.registry.entry_points", entry_points)


def trained(folder, name, **settings):
    """What the header and the configuration of a run say."""
    recipes.grpo(**{**DETACHED, "total_steps": 2, "makers": 2, **settings}, output_dir=folder, name=name)
    return [json.loads((folder / name / file).read_text()) for file in ("run.json", "config.json")]


def test_given_in_three_ways_it_samples_for_makers_and_evals(tmp_path, plugin):
    evals = [{"name": "held_out", "count": 2, "run_every": 2, "samples": 2, "temperature": 1.0}]
    by_object, written = trained(tmp_path, "object", engine=OneByOne, eval=evals)
    assert made == [1] * 3  # of two makers and of the eval
    assert written["engine"]["kind"] == "OneByOne (given in Python)"
    assert by_object["engine"] == {"kind": "OneByOne (given in Python)", "independent": True}
    by_path, written = trained(tmp_path, "path", engine={"kind": PATH, "params": {"patience": 2}}, eval=evals)
    assert made == [1] * 3 + [2] * 3
    assert written["engine"]["kind"] == PATH
    by_name, _ = trained(tmp_path, "entry", engine="one_by_one", makers=1, eval=evals)
    assert made == [1] * 3 + [2] * 3 + [1] * 2
    plain, _ = trained(tmp_path, "native", eval=evals)
    digests = [header["weights_digest"] for header in (by_object, by_path, by_name, plain)]
    assert digests[0] == digests[1] == digests[2] != digests[3]


def test_a_configuration_made_in_python_may_hold_it(tmp_path):
    config = RunConfig(**DETACHED, output_dir=tmp_path, engine=OneByOne)
    assert config.engine.factory is OneByOne
    recipes.run(config, total_steps=1)
    assert made == [1]
    assert load_run_config(**DETACHED, engine={"kind": OneByOne, "slots": 3}).engine.factory is OneByOne


def test_a_run_with_it_is_resumed_where_it_was_given(tmp_path):
    whole, _ = trained(tmp_path, "whole", engine=OneByOne, total_steps=3)
    saved = {"total_steps": 3, "checkpoint": {"save_every": 1}}
    with pytest.raises(RuntimeError, match="stopped here"):
        trained(tmp_path, "cut", engine=OneByOne, callbacks=[StopAfter(2)], **saved)
    resumed, _ = trained(tmp_path, "cut", engine=OneByOne, resume="auto", **saved)
    assert resumed["weights_digest"] == whole["weights_digest"]


MODEL = DETACHED["model"]["config"]


def test_built_from_a_configuration_it_has_no_weights_and_from_a_folder_it_has_those(tmp_path):
    from proa.data.sampling import Sampling
    from proa.policy.models import model_weights, save_model

    model = load_model(MODEL, seed=3)
    save_model(model, None, tmp_path)
    requests = [Request(str(seed), (3, 4), seed, Sampling(max_new_tokens=6)) for seed in range(4)]
    for kind in ("native", "hf"):
        empty = build_engine(kind, MODEL, end_ids=())
        assert not empty.versions
        with pytest.raises(SettingError, match="version 0, which are not loaded"):
            empty.submit(requests[0])
        empty.load(model_weights(model), 0)
        engines = [empty, build_engine(kind, tmp_path, end_ids=()), build_engine(kind, model, end_ids=())]
        texts = [[one.tokens.tolist() for one in generate(engine, requests)] for engine in engines]
        assert texts[0] == texts[1] == texts[2]


@pytest.mark.parametrize(
    ("engine", "said"),
    [
        ("nativ", "no engine 'nativ'.*did you mean 'native'"),
        ("tests.engines.test_own_engine:nothing", "has no 'nothing'"),
        ("tests.engines.test_own_engine:PATH", "not a class or a function that makes one"),
        ({"dtype": "bfloat"}, "engine.dtype: write float32, .*, not 'bfloat'"),
    ],
)
def test_one_that_there_is_not_is_refused_with_the_configuration(engine, said):
    with pytest.raises(ConfigError, match=said):
        load_run_config(**DETACHED, engine=engine)


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"kind": "hf", "cache_tokens": 100}, "engine 'hf' has no setting 'cache_tokens'"),
        ({"kind": PATH, "params": {"patienc": 1}}, "has no setting 'patienc'.*did you mean 'patience'"),
    ],
)
def test_settings_that_it_has_not_are_refused_before_anything_is_written(tmp_path, section, said):
    with pytest.raises(SettingError, match=said):
        recipes.grpo(**DETACHED, name="run", output_dir=tmp_path, engine=section)
    assert not list(tmp_path.iterdir())


def test_what_it_raises_while_it_is_made_is_said_with_its_name(tmp_path):
    def broken(description):
        raise KeyError("no licence")

    with pytest.raises(SettingError, match="engine 'broken' could not be made: KeyError: 'no licence'"):
        recipes.grpo(**DETACHED, name="run", output_dir=tmp_path, engine=broken)
    assert not (tmp_path / "run").exists()


def test_one_that_lacks_something_is_refused_with_what_it_lacks(tmp_path):
    class Half:
        is_independent, versions, context_length, free = True, (), 8, 1

        def __init__(self, description):
            self.submit = self.step = self.cancel = print

    with pytest.raises(SettingError, match="engine 'Half' has no score, load, sleep: what an engine must have is in"):
        recipes.grpo(**DETACHED, name="run", output_dir=tmp_path, engine=Half)
    assert not (tmp_path / "run").exists()


def test_what_was_given_in_python_is_missed_in_words_where_it_is_not():
    saved = EngineSection(kind=f"OneByOne {GIVEN}")
    with pytest.raises(SettingError, match=r"the run's engine, OneByOne \(given in Python\), is not here"):
        saved.make(load_model(MODEL), [1])
