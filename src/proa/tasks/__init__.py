"""Tasks: rows of prompts with the columns that rewards need, in a seeded order."""

from .loading import load_examples, load_task
from .prompts import PromptStream
from .task import Task, TaskError, TaskRow

__all__ = ["PromptStream", "Task", "TaskError", "TaskRow", "load_examples", "load_task"]
