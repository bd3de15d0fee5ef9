"""What a server's workers would do if nobody packed a tied head again: vLLM's own defect on a CPU."""

from proa.engines.vllm.inside import transfer
from proa.engines.vllm_server.worker import TakesWeights

transfer.pack_again = lambda head: None


class StaleHead(TakesWeights):
    """Leaves the output head as it was."""
