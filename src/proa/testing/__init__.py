"""The conformance kit: drives a trainer through every way a run can end and checks what its hooks saw.

from proa.testing import assert_lifecycle

def test_my_trainer_keeps_the_lifecycle():
    assert_lifecycle(lambda callbacks: MyTrainer(callbacks=callbacks).fit(total_steps=4))
"""

from .conformance import Conformance, assert_lifecycle, check_lifecycle
from .grammar import problems_in
from .recorder import Fired, Recorder

__all__ = ["Conformance", "Fired", "Recorder", "assert_lifecycle", "check_lifecycle", "problems_in"]
