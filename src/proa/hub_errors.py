"""Errors of the Hugging Face Hub, of its cache and of the network before it, in the user's words."""

from __future__ import annotations

from collections.abc import Iterator


def explain_hub_error(error: Exception, what: str, name: str, revision: str | None = None) -> str:
    """Why something is not had from the Hub, and what to do about it; `what` is a model or a dataset."""
    kinds = {kind.__name__ for one in _chain(error) for kind in type(one).__mro__}
    address = name if what == "model" else f"datasets/{name}"
    if "GatedRepoError" in kinds:
        return (
            f"the Hub gives {name} only to those who accepted its conditions: accept them at "
            f"https://huggingface.co/{address}, and log in with hf auth login"
        )
    if "RevisionNotFoundError" in kinds:
        return f"{name} on the Hub has no revision {revision}"
    if kinds & {"RepositoryNotFoundError", "DatasetNotFoundError"}:
        return f"the Hub has no {what} {name}, or it is private: look at its spelling, or log in with hf auth login"
    if kinds & {"LocalEntryNotFoundError", "OfflineModeIsEnabled", "ConnectionError"}:
        from huggingface_hub import constants

        network = (
            "the Hub is not asked, for HF_HUB_OFFLINE is set"
            if constants.HF_HUB_OFFLINE
            else "the Hub cannot be reached"
        )
        options = ("" if what == "model" else f"--repo-type {what} ") + (f"--revision {revision} " if revision else "")
        wanted = f"{name} at revision {revision}" if revision else name
        return (
            f"{network}, and its cache on this machine does not have the {what} {wanted}: fetch it where there is "
            f"a network, with hf download {options}{name}"
        )
    return f"the Hub gives no {what} {name}: {type(error).__name__}: {str(error).strip().partition(chr(10))[0]:.300}"


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
