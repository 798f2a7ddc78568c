"""Both ways to use transformers: our networks as its models, and its trainers with our loss.

Importing this package (or `unmask.transformers`, its short name) registers our classes with `AutoConfig` and
`AutoModelForMaskedLM`, in whichever order the packages are imported. Registered classes take precedence over the
`auto_map` of a repository, even with trust_remote_code=True: no code from a repository is run. transformers has no
entry points for external models.
"""

from ...errors import pip

try:
    from transformers import AutoConfig, AutoModelForMaskedLM
except ImportError as error:
    message = f"unmask.transformers needs the package transformers; install it with: {pip('transformers')}"
    raise ImportError(message) from error

from ..card import model_card
from ..push import push_to_hub
from .collator import MDLMCollator, mdlm_loss, unpack
from .configuration import MDLMConfig, UnmaskConfig
from .modeling import MDLM, UnmaskForMaskedLM

__all__ = [
    "MDLM",
    "MDLMCollator",
    "MDLMConfig",
    "UnmaskConfig",
    "UnmaskForMaskedLM",
    "mdlm_loss",
    "model_card",
    "push_to_hub",
    "unpack",
]  # fmt: skip

AutoConfig.register("mdlm", MDLMConfig, exist_ok=True)
AutoConfig.register("unmask", UnmaskConfig, exist_ok=True)
AutoModelForMaskedLM.register(MDLMConfig, MDLM, exist_ok=True)
AutoModelForMaskedLM.register(UnmaskConfig, UnmaskForMaskedLM, exist_ok=True)
