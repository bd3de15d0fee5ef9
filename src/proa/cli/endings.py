"""How verbs end when something goes wrong: in words where it is the user's, with a traceback where it is ours."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable

from ..config import ConfigError
from ..errors import CallbackConfigError, ProaError, SettingError
from ..record.run_folder import RunFolderError

WRONG_USE = (RunFolderError, ConfigError, SettingError, CallbackConfigError)


def ending(work: Callable[[], int]) -> int:
    """Do it. Exit code: what it returns; or 1 failed, 2 wrong use, with what is to be said of it on stderr."""
    try:
        return work()
    except WRONG_USE as error:
        print(error, file=sys.stderr)
        return 2
    except ProaError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        for note in getattr(error, "__notes__", ()):
            print(f"  {note}", file=sys.stderr)
        return 1
    except Exception:
        traceback.print_exc()
        return 1
