"""What the Hub refuses, and a network that is not there, in words that say what to do."""

import httpx
import pytest
from huggingface_hub import constants, errors

from proa.hub_errors import explain_hub_error

ANSWER = httpx.Response(404, request=httpx.Request("GET", "https://huggingface.co"))


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (errors.GatedRepoError("403", response=ANSWER), "accept them at https://huggingface.co/mine/model, and log in"),
        (errors.RepositoryNotFoundError("404", response=ANSWER), "the Hub has no model mine/model, or it is private"),
        (errors.RevisionNotFoundError("404", response=ANSWER), "mine/model on the Hub has no revision v2"),
        (errors.LocalEntryNotFoundError("none"), "the Hub cannot be reached, and its cache on this machine does"),
        (
            ConnectionError("refused"),
            "model mine/model at revision v2: fetch it where there is a network, with hf download --revision v2 mine",
        ),
        (RuntimeError("disk\nfull"), "the Hub gives no model mine/model: RuntimeError: disk"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_each_kind_of_refusal_has_its_remedy(monkeypatch, error, words):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    assert words in explain_hub_error(error, "model", "mine/model", "v2")


def test_what_another_library_raises_is_known_by_its_cause():
    error = ValueError("no such dataset")
    error.__cause__ = errors.RepositoryNotFoundError("404", response=ANSWER)
    assert explain_hub_error(error, "dataset", "mine/data").startswith("the Hub has no dataset mine/data")
