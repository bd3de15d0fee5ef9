"""The page for those who come from TRL: its file is a configuration, and its names are answered as it says."""

import re

import pytest

from proa.config import load_run_config
from proa.config.foreign_names import name_here
from proa.config.reference import settings


@pytest.fixture
def page(repository):
    return (repository / "docs/from_trl.md").read_text()


def test_the_file_is_a_configuration(page, tmp_path):
    (text,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    file = tmp_path / "run.yaml"
    file.write_text(text)
    config = load_run_config(file)
    assert (config.algorithm.params, config.sampling.group_size) == ({"kl_coefficient": 0.04}, 8)


def test_every_name_of_the_table_is_answered(page):
    ours = {setting.key.split(".")[-1] for setting in settings()}
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    assert len(rows) >= 15
    for row in rows:
        for name in re.findall(r"`(\w+)`", row.split("|")[1]):
            assert name in ours or name_here(name), name
