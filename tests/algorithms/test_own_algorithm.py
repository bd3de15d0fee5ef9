"""An algorithm of one's own: by object, by dotted path, by entry point; its loss is the one that is trained."""

import importlib.metadata
import json
import threading
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from tests.algorithms import signed
from tests.algorithms.signed import Signed, computed
from tests.digests import StopAfter
from tests.small import DETACHED

from proa import Experiment, recipes
from proa.algorithms import GRPO, PPO, build_algorithm
from proa.cli.main import main
from proa.config import ConfigError, DetachedConfig, RunConfig, load_run_config
from proa.errors import NotPortableError, SettingError, UnknownNameError
from proa.resume.inputs import ChangedInputsError

PATH = f"{signed.__name__}:Signed"


@pytest.fixture
def plugin(monkeypatch):
    """An installed package's entry point, as importlib.metadata would find it."""

    def entry_points(*, group):
        values = {"signed": PATH, "broken": "no_such_package:Thing"} if group == "proa.algorithms" else {}
        return [importlib.metadata.EntryPoint(name, value, group) for name, value in values.items()]

    monkeypatch.setattr("proa.registry.entry_points", entry_points)


@pytest.fixture(autouse=True)
def no_losses_yet():
    computed.clear()


def trained(folder, name, recipe=recipes.grpo, **settings):
    """What the header and the configuration of a run say."""
    recipe(**{**DETACHED, "total_steps": 3, **settings}, output_dir=folder, name=name)
    return [json.loads((folder / name / file).read_text()) for file in ("run.json", "config.json")]


def test_given_in_three_ways_it_trains_to_the_same_weights_and_not_to_grpos(tmp_path, plugin):
    by_object, written = trained(tmp_path, "object", algorithm=Signed(scale=2.0))
    assert computed == [2.0] * 3
    assert written["algorithm"] | {} == {
        "name": "Signed (given in Python)", "params": {"scale": 2.0}, "old": "sampler", "importance_cap": 2.0,
    }  # fmt: skip
    by_path, written = trained(tmp_path, "path", algorithm={"name": PATH, "params": {"scale": 2.0}})
    assert (written["algorithm"]["name"], written["algorithm"]["params"]) == (PATH, {"scale": 2.0})
    by_name, _ = trained(
        tmp_path, "entry", recipe=recipes.run, algorithm={"name": "signed", "params": {"scale": 2.0}}
    )  # fmt: skip
    assert computed == [2.0] * 9
    plain, _ = trained(tmp_path, "grpo")
    assert computed == [2.0] * 9
    digests = [header["weights_digest"] for header in (by_object, by_path, by_name, plain)]
    assert digests[0] == digests[1] == digests[2] != digests[3]


def test_a_configuration_made_in_python_may_hold_the_object(tmp_path):
    config = RunConfig(**DETACHED, output_dir=tmp_path, algorithm={"name": Signed(scale=3.0), "old": "trainer"})
    assert isinstance(config, DetachedConfig)
    assert config.algorithm.build() == Signed(scale=3.0)
    assert config.algorithm.old == "trainer"
    recipes.run(config, total_steps=1)
    assert computed == [3.0]
    assert load_run_config(**DETACHED, algorithm=Signed()).algorithm.given == Signed()


def test_an_arm_of_an_experiment_may_have_it(tmp_path):
    arms = {
        "own": {**DETACHED, "total_steps": 1, "algorithm": Signed(scale=4.0)},
        "grpo": {**DETACHED, "total_steps": 1},
    }
    assert Experiment({"name": "both", "output_dir": tmp_path, "runs": arms}).run().status == "completed"
    assert computed == [4.0]


@dataclass(frozen=True, kw_only=True)
class Scored(Signed):
    """Has a setting that JSON has no form for."""

    judge: Any = len


def test_an_experiment_names_and_records_the_object_by_class_and_settings(tmp_path):
    over = {"algorithm": [Scored(scale=2.0), Scored(judge=abs), GRPO(clip_low=0.1), "grpo"]}
    config = {"name": "e", "output_dir": tmp_path, "matrix": {"run": {**DETACHED, "total_steps": 1}, "over": over}}
    experiment = Experiment(config)
    names = [chain[0].key for chain in experiment.plan]
    assert names == [
        "algorithm-Scored-scale-2.0", "algorithm-Scored-judge-builtins-abs",
        "algorithm-grpo-clip_low-0.1", "algorithm-grpo",
    ]  # fmt: skip
    del experiment.plan[1:]  # one run is enough
    assert experiment.run().status == "completed"
    written = json.loads((tmp_path / "e" / "experiment.json").read_text())["config"]["matrix"]["over"]["algorithm"]
    assert written[0] == {"name": "Scored (given in Python)", "params": {"scale": 2.0}}
    assert written[2:] == [{"name": "grpo", "params": {"clip_low": 0.1}}, "grpo"]
    again = Experiment(
        {**config, "matrix": None, "run": {**DETACHED, "algorithm": {"name": Scored(), "old": "trainer"}}}
    )
    assert again.config.model_dump(mode="json")["run"]["algorithm"] == {
        "name": "Scored (given in Python)", "params": {}, "old": "trainer",
    }  # fmt: skip


def test_an_experiment_in_processes_refuses_at_once_an_object_that_cannot_be_sent_there(tmp_path):
    @dataclass(frozen=True, kw_only=True)
    class Local(Signed):
        pass

    arms = {"a": {**DETACHED}, "b": {**DETACHED, "algorithm": Local()}}
    with pytest.raises(NotPortableError, match="arm b: Local lives in another process.*name the class instead"):
        Experiment({"output_dir": tmp_path, "runs": arms, "max_concurrent_arms": 2})
    Experiment({"output_dir": tmp_path, "runs": arms})


def test_one_of_proas_own_as_an_object_is_the_same_as_its_name(tmp_path):
    config = RunConfig(**DETACHED, algorithm=GRPO(clip_low=0.1))
    assert config == RunConfig(**DETACHED, algorithm={"name": "grpo", "params": {"clip_low": 0.1}})
    assert config.algorithm.given is None
    with pytest.raises(ConfigError, match="the recipe grpo was given a configuration for algorithm ppo: use that"):
        recipes.grpo(**DETACHED, output_dir=tmp_path, algorithm=PPO())


@pytest.mark.parametrize(
    ("algorithm", "words"),
    [
        (Signed, r"Signed'>: give an object, Signed\(\)"),
        (object(), "algorithm must be a name, a dotted path or an algorithm, not <object"),
        (
            {"name": Signed(), "params": {"scale": 2}},
            "the algorithm Signed was given as an object with its settings: leave out",
        ),
    ],
)
def test_what_is_not_an_algorithm_is_refused(algorithm, words):
    with pytest.raises(ConfigError, match=words):
        load_run_config(**DETACHED, algorithm=algorithm)


def test_a_supervised_recipe_has_an_algorithm_already(tmp_path):
    for algorithm in (Signed(), PATH):
        with pytest.raises(ConfigError, match="the recipe sft was given a configuration for algorithm .*recipes.run"):
            recipes.sft(**DETACHED, output_dir=tmp_path, algorithm=algorithm)


# Mistakes, with their line, before anything is loaded.

FILE = """\
total_steps: 4
train_batch_size: 8
sampling: {group_size: 2}
model: nowhere
task: no_such_task
algorithm:
  name: tests.algorithms.signed:Signed
  params:
    scale: 0.5
    clip_low: 0.1
"""


@pytest.fixture
def refused(tmp_path):
    def load(old, new, *flags):
        assert old in FILE
        (tmp_path / "run.yaml").write_text(FILE.replace(old, new))
        with pytest.raises(ConfigError) as error:
            load_run_config(tmp_path / "run.yaml", flags)
        return str(error.value).removeprefix(str(tmp_path))

    return load


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("scale: 0.5", "scale: 0", "line 9: algorithm.params.scale must be a number, more than 0, not 0"),
        ("clip_low: 0.1", "clip_low: 7", "line 10: algorithm.params.clip_low must be a number, more than 0 and at mos"),
        ("clip_low: 0.1", "clip_low: 1e-1", "not '1e-1' (a text: in YAML write 3.0e-5, with the point)"),
        ("scale: 0.5", "scael: 0.5", "line 9: algorithm 'tests.algorithms.signed:Signed' has no setting 'scael'; did "),
        (":Signed", ":Sined", "line 7: algorithm 'tests.algorithms.signed:Sined': tests.algorithms.signed has no 'Sin"),
        (":Signed", ":MADE", "line 7: algorithm 'tests.algorithms.signed:MADE' is an object: name its"),
        (":Signed", ":NOT_ONE", "line 7: algorithm 'tests.algorithms.signed:NOT_ONE' is not an algorithm: derive a cl"),
        (":Signed", ":Pairs", "line 8: algorithm 'tests.algorithms.signed:Pairs' needs the setting 'least', which ha"),
        ("tests.algorithms", "no.such", "no module 'no' on Python's search path"),
        ("group_size: 2", "group_size: 1", "line 3: sampling.group_size must be at least 2: completions of one prompt"),
        (
            "algorithm:\n",
            "critic: separate\nalgorithm:\n",
            "line 6: critic does not apply to algorithm tests.algorith",
        ),
        ("algorithm:\n", "algorithm: gropo\nx:\n", "unknown key 'x'"),
    ],
)
def test_mistakes_in_a_file_have_their_line(refused, old, new, words):
    assert words in refused(old, new)


def test_a_short_form_has_a_line_too(refused):
    section = FILE[FILE.index("algorithm:") :]
    assert "/run.yaml, line 6: no algorithm 'gropo'; did you mean 'grpo'?" in refused(section, "algorithm: gropo\n")
    assert "your own: 'package.module:Class'" in refused(section, "algorithm: gropo\n")


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("stf", "line 6: no algorithm 'stf'; did you mean 'sft'? (known: grpo, "),
        (f"{PATH[:-6]}Pairs", "line 6: algorithm 'tests.algorithms.signed:Pairs' needs the setting 'least', which has"),
        (f"{PATH[:-6]}Unfinished", "line 6: algorithm 'tests.algorithms.signed:Unfinished': TypeError: Can't instant"),
        (f"{PATH[:-6]}Forgotten", "line 6: Forgotten.power looks like a setting, and Forgotten is not a dataclass"),
        (
            f"{{name: '{PATH[:-6]}Forgotten', params: {{power: 3.0}}}}",
            "line 6: Forgotten.power looks like a setting, and Forgotten is not a dataclass: write @dataclass",
        ),
        (
            "null",
            "line 6: algorithm must be a section with keys of its own (name, params, old, importance_cap), or the",
        ),
        ("null", "or the name alone, not null"),
    ],
)
def test_mistakes_that_have_no_key_of_their_own_have_the_line_of_the_algorithm(refused, written, words):
    assert words in refused(FILE[FILE.index("algorithm:") :], f"algorithm: {written}\n")


def test_tuples_and_sets_are_lists_in_a_file(tmp_path):
    settings = "{order: [1, 2], pairs: [[a, 0.5], [b, 1.0]], names: [x, y]}"
    section = f"algorithm:\n  name: {PATH[:-6]}Ordered\n  params: {settings}\n"
    (tmp_path / "run.yaml").write_text(FILE[: FILE.index("algorithm:")] + section)
    config = load_run_config(tmp_path / "run.yaml")
    made = signed.Ordered(order=(1, 2), pairs=(("a", 0.5), ("b", 1.0)), names=frozenset("xy"))
    assert config.algorithm.build() == made
    assert RunConfig(**DETACHED, algorithm=made).algorithm.params == config.algorithm.params
    with pytest.raises(ConfigError, match=r"algorithm.params.order.1 must be a whole number, not 'x'"):
        load_run_config(tmp_path / "run.yaml", ["--algorithm.params.order", "[1, x]"])


def test_what_a_flag_says_is_not_blamed_on_the_file(refused):
    said = refused("name", "name", "--algorithm.params.clip_low", "7")
    assert said.startswith("algorithm.params.clip_low must be a number")
    params = "  params:\n    scale: 0.5\n    clip_low: 0.1\n"
    assert refused(params, "", "--algorithm.name", f"{PATH[:-6]}Pairs").startswith("algorithm 'tests.algorithms.sign")


def test_what_the_class_says_itself_is_told(refused):
    settings = "params:\n    least: 4\n"
    said = refused("params:\n    scale: 0.5\n    clip_low: 0.1\n", settings, "--algorithm.name", f"{PATH[:-6]}Pairs")
    assert "line 8: algorithm 'tests.algorithms.signed:Pairs': ValueError: least is more than most" in said


def test_how_many_completions_are_compared_is_the_algorithms_to_say(refused):
    settings = "params:\n    least: 2\n"
    said = refused("params:\n    scale: 0.5\n    clip_low: 0.1\n", settings, "--algorithm.name", f"{PATH[:-6]}Pairs")
    assert "sampling.group_size must be at least 4" in said


def test_a_plugin_that_cannot_be_loaded_says_so(plugin):
    with pytest.raises(UnknownNameError, match=r"algorithm 'broken' \(no_such_package:Thing\) could not be loaded"):
        build_algorithm("broken")


def test_settings_of_a_class_that_is_not_a_dataclass_are_refused():
    class Forgotten(Signed):
        power: float = 2.0

    with pytest.raises(SettingError, match="Forgotten.power looks like a setting.*@dataclass"):
        Forgotten()


def test_a_critic_comes_with_the_class_that_says_how_it_learns():
    with pytest.raises(SettingError, match="Judged needs a critic.*derive it from CriticAlgorithm"):

        class Judged(Signed):
            needs_critic = True

    class Valued(PPO):
        needs_critic = True

    assert Valued().needs_critic


def test_settings_may_be_of_any_type():
    @dataclass(frozen=True, kw_only=True)
    class Free(Signed):
        anything: Any = None
        lock: ClassVar[int] = 3
        order: tuple[int, ...] = ()

    assert Free(anything=object, order=(1, 2)).name == "Free"
    with pytest.raises(SettingError, match="order must be a list, not 3"):
        Free(order=3)


# Resuming.


def cut_off(folder, **settings):
    with pytest.raises(RuntimeError, match="stopped here"):
        trained(folder, "run", **settings, total_steps=4, checkpoint={"save_every": 2}, callbacks=[StopAfter(3)])


def resumed(folder, **settings):
    return trained(
        folder, "run", **settings, total_steps=4, checkpoint={"save_every": 2}, resume="auto"
    )[0]  # fmt: skip


def test_a_run_with_an_object_is_resumed_in_python_with_the_same_object_alone(tmp_path, capsys):
    cut_off(tmp_path, algorithm=Signed(scale=2.0))
    assert main(["resume", str(tmp_path / "run")]) == 2
    assert "given in Python" in capsys.readouterr().err
    with pytest.raises(ConfigError, match=r"algorithm.params.scale was 2.0 and is 3.0"):
        resumed(tmp_path, algorithm=Signed(scale=3.0))
    with pytest.raises(ConfigError, match=r"algorithm.name was 'Signed \(given in Python\)' and is 'grpo'"):
        resumed(tmp_path)
    digest = resumed(tmp_path, algorithm=Signed(scale=2.0))["weights_digest"]
    assert digest == trained(tmp_path, "whole", total_steps=4, algorithm=Signed(scale=2.0))[0]["weights_digest"]
    assert main(["eval", str(tmp_path / "run"), "--task", "sort_digits", "--count", "2", "--json"]) == 0


OWN = """
from dataclasses import dataclass
from proa.algorithms import GRPO

@dataclass(frozen=True, kw_only=True)
class Mine(GRPO):
    power: float = 1.0

    def advantages(self, rewards_B, groups_B):
        return self.power * super().advantages(rewards_B, groups_B)
"""


def test_an_edited_algorithm_is_noticed_and_an_absent_one_stops_no_eval(tmp_path, monkeypatch, capsys):
    import sys

    monkeypatch.syspath_prepend(tmp_path)
    module = tmp_path / "own_algorithm.py"
    module.write_text(OWN)
    mine = {"algorithm": {"name": "own_algorithm:Mine", "params": {"power": 2.0}}}
    try:
        cut_off(tmp_path, **mine)
        del sys.modules["own_algorithm"]
        module.write_text(OWN.replace("self.power *", "2 * self.power *"))
        with pytest.raises(ChangedInputsError, match=r"the algorithm has changed \(its class"):
            resumed(tmp_path, **mine)
        del sys.modules["own_algorithm"]
        module.write_text(OWN.replace("class Mine", "class  Mine") + "# a remark\n")
        assert main(["resume", str(tmp_path / "run")]) == 0
    finally:
        sys.modules.pop("own_algorithm", None)
    module.unlink()
    assert main(["eval", str(tmp_path / "run"), "--task", "sort_digits", "--count", "2", "--json"]) == 0


@dataclass(frozen=True, kw_only=True)
class Locked(Signed):
    lock: Any = None


def test_what_cannot_travel_to_ray_is_refused_by_name(tmp_path):
    settings = {**DETACHED, "runtime": "ray", "output_dir": tmp_path, "algorithm": Locked(lock=threading.Lock())}
    with pytest.raises(NotPortableError, match=r"Locked lives in another process .* its attribute 'lock'"):
        recipes.grpo(**settings)
    assert not (tmp_path / "run").exists()
