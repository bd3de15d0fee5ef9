"""Starts a recipe. Torch takes seconds to import: what can be refused without it is refused before, and the first line
is there.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ..config import RunConfig
from ..data.state import LoopState
from ..lifecycle.manager import Callbacks
from ..run.foreseen import foresee
from ..run.given import configured, outlined


def start(
    config: RunConfig | Path | str | None = None,
    algorithm: str | None = None,
    /,
    *,
    callbacks: Callbacks = None,
    **changes: Any,
) -> LoopState:
    """Run as configured and return the final state; `run.start.start` says more."""
    if changes.get("resume") is not None or isinstance(config, RunConfig) or "torch" in sys.modules:
        from ..run.start import start

        return start(config, algorithm, callbacks=callbacks, **changes)
    options = {name: changes.pop(name) for name in ("resume", "allow_changes", "overwrite") if name in changes}
    outline, given = outlined(config, algorithm, changes)
    outline, announced = foresee(
        outline,
        overwrite=options.get("overwrite", False),
        data=given.data,
        has_tokenizer=given.tokenizer is not None or outline.model.tokenizer is not None,
    )
    from ..run.start import start_configured

    settled, given = configured(config, algorithm, {**changes, "name": outline.name})
    return start_configured(settled, given, callbacks=callbacks, announced=announced, **options)
