"""Models in the lm-evaluation-harness, as `--model unmask`: log-likelihoods from the bound, and generation.

`likelihood_requests` scores (context, continuation) pairs and whole texts, `generation_requests` writes text, and
`adapter` is the class that the harness sees. The harness itself is optional and imported where it is used.
"""

from .adapter import Settings, adapter, main, settings
from .generation_requests import GenerationRequests
from .likelihood_requests import LikelihoodRequests

__all__ = ["GenerationRequests", "LikelihoodRequests", "Settings", "adapter", "main", "settings"]
