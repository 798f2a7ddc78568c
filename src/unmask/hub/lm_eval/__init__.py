"""Models in the lm-evaluation-harness, as `--model unmask`: log-likelihoods by the bound, and writing.

`reading` scores (context, continuation) pairs and whole texts, `asking` turns requests for text into jobs, and
`adapter` is the class that the harness sees. The harness itself is optional and imported where it is used.
"""

from .adapter import Settings, adapter, main, settings
from .generation_requests import GenerationRequests
from .likelihood_requests import LikelihoodRequests

__all__ = ["GenerationRequests", "LikelihoodRequests", "Settings", "adapter", "main", "settings"]
