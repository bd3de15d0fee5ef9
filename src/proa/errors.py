"""Errors that Proa raises itself; all can be sent between processes."""


class ProaError(Exception):
    """Base of every error that Proa raises itself."""


class SettingError(ProaError, ValueError):
    """A setting cannot be used as written."""


class UnknownNameError(SettingError):
    """Nothing has the name that a configuration gives, or it is not what should be named there."""


class HookError(ProaError, TypeError):
    """A callback cannot work as written: an unknown hook, a wrong signature, or the wrong place."""


class EventError(ProaError, ValueError):
    """The event name is unknown."""


class NothingToTrainOnError(ProaError):
    """Nothing was learned: every sample was filtered out or had no reward, or no loss was a number."""


class CallbackStateError(ProaError, ValueError):
    """The saved states of callbacks are ambiguous or do not match."""


class NotPortableError(ProaError, TypeError):
    """A callback must be sent to another process and cannot be pickled."""


class CallbackConfigError(ProaError, ValueError):
    """A `{kind, params}` entry does not describe a callback."""
