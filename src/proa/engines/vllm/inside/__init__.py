"""What runs within vLLM's workers. It needs vLLM to be imported.

Where the model is split over several GPUs these are other processes: they import this to find the class of rows, and
know from then on how weights come.
"""

from .transfer import register

register()
