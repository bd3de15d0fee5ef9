"""The package as a whole: what importing it costs, what it offers, what the command line says."""

import json
import resource
import subprocess
import sys

import pytest

import proa
from proa.cli.main import main


def in_a_new_process(*arguments):
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=600, check=True).stdout


def test_importing_proa_imports_nothing_heavy():
    source = "import sys, proa; print(*sys.modules)"
    loaded = in_a_new_process("-c", source).split()
    assert not {"torch", "ray", "transformers", "numpy", "rich", "asyncio", "pydantic"} & set(loaded)


def test_the_lifecycle_and_the_registry_work_without_torch():
    source = (
        "import sys, proa, proa.callbacks, proa.testing\n"
        "proa.CallbackManager([proa.callbacks.EarlyStopping('loss')]).fire('step_end', proa.TrainState())\n"
        "print(*sys.modules)"
    )
    assert not {"torch", "ray", "transformers", "rich"} & set(in_a_new_process("-c", source).split())


def test_every_public_name_is_there_and_says_what_it_is():
    for name in proa.__all__:
        value = getattr(proa, name)
        assert name in dir(proa)
        assert name == "__version__" or value.__doc__
    with pytest.raises(AttributeError, match="NoSuchThing"):
        _ = proa.NoSuchThing


def test_help_answers_in_under_a_second():
    seconds = []
    for _ in range(3):  # of the processor's time: the machine may be busy with something else
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        out = in_a_new_process("-m", "proa", "--help")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert "moments" in out
    assert min(seconds) < 1.0


def test_the_verb_moments_shows_one_or_all(capsys):
    assert main(["moments", "step_end"]) == 0
    shown = capsys.readouterr().out
    assert "Callback.on_step_end(state, step_idx, batch, metrics)" in shown
    assert main(["moments", "--json"]) == 0
    assert [row["event"] for row in json.loads(capsys.readouterr().out)][0] == "train_start"


def test_a_misspelt_event_on_the_command_line_is_wrong_use(capsys):
    assert main(["moments", "step_ned"]) == 2
    assert "did you mean 'step_end'?" in capsys.readouterr().err


def test_the_verb_callbacks_lists_kinds(capsys):
    assert main(["callbacks", "--json"]) == 0
    assert "early_stopping" in json.loads(capsys.readouterr().out)


def test_no_verb_is_wrong_use(capsys):
    assert main([]) == 2
    assert "VERB" in capsys.readouterr().out
