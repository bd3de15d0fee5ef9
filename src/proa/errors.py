"""Errors that Proa raises on purpose, each in the user's words and safe to send between processes."""


class ProaError(Exception):
    """Base of every error that Proa raises itself."""


class SettingError(ProaError, ValueError):
    """A setting cannot be used as written."""


class UnknownNameError(SettingError):
    """Nothing has the name that a configuration gives, or it is not what should be named there."""


class HookError(ProaError, TypeError):
    """A callback cannot work as written: no such hook, a wrong signature, or the wrong place for it."""


class EventError(ProaError, ValueError):
    """No moment has that event name."""


class NothingToTrainOnError(ProaError):
    """Nothing was learned: every sample was filtered out or without a reward, or no loss was a number."""


class CallbackStateError(ProaError, ValueError):
    """The saved state of callbacks cannot be told apart, or does not fit."""


class NotPortableError(ProaError, TypeError):
    """A callback must travel to another process and cannot be pickled."""


class CallbackConfigError(ProaError, ValueError):
    """A `{kind, params}` entry does not describe a callback."""
