"""transformers both ways: our networks as its models, its trainers for our loss.

Importing this package (or `unmask.transformers`, its short name) registers our classes with `AutoConfig` and
`AutoModelForMaskedLM`, whoever was imported first. What is registered wins over the `auto_map` of a repository, also
with trust_remote_code=True: no code of a repository is run. transformers has no entry points for models of others.
"""

try:
    from transformers import AutoConfig, AutoModelForMaskedLM
except ImportError as error:
    message = "unmask.transformers needs the package transformers; pip install 'unmask[transformers]'"
    raise ImportError(message) from error

from ..card import model_card
from ..push import push_to_hub
from .collator import MDLMCollator, mdlm_loss, unpack
from .configuration import MDLMConfig
from .modeling import MDLM

__all__ = ["MDLM", "MDLMCollator", "MDLMConfig", "mdlm_loss", "model_card", "push_to_hub", "unpack"]

AutoConfig.register("mdlm", MDLMConfig, exist_ok=True)
AutoModelForMaskedLM.register(MDLMConfig, MDLM, exist_ok=True)
