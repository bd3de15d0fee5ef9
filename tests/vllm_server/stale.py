"""What a server's workers would do if nobody packed a tied head again: vLLM's own defect on a CPU."""

from proa.engines.vllm_server import worker
from proa.engines.vllm_server.worker import TakesWeights

worker._tied_heads = lambda model: ()


class StaleHead(TakesWeights):
    """Leaves the output head as it was."""
