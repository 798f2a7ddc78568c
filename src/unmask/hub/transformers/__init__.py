"""transformers both ways: our networks as its models, its trainers for our loss.

`import unmask` is enough for `AutoConfig`, `AutoModelForMaskedLM` and `pipeline("fill-mask")` (`register.py`): our
class comes from this package and never from the repository of a model. transformers itself stays optional.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...lazy import names_of

if TYPE_CHECKING:
    from .card import model_card
    from .collator import MDLMCollator, mdlm_loss, unpack
    from .configuration import MDLMConfig
    from .modeling import MDLM
    from .push import push_to_hub

__all__ = ["MDLM", "MDLMCollator", "MDLMConfig", "mdlm_loss", "model_card", "push_to_hub", "unpack"]

_ROOMS = {
    "MDLM": "modeling",
    "MDLMCollator": "collator",
    "MDLMConfig": "configuration",
    "mdlm_loss": "collator",
    "model_card": "card",
    "push_to_hub": "push",
    "unpack": "collator",
}
_NEEDS = {"MDLM", "MDLMConfig"}  # transformers
_find = names_of(__name__, _ROOMS)


def __getattr__(name: str) -> Any:
    """Import a part when it is first used: the hook must not cost anything."""
    import importlib.util

    if name in _NEEDS and importlib.util.find_spec("transformers") is None:
        from ...errors import UserError

        raise UserError(
            f"unmask.hub.transformers.{name} needs the package transformers; pip install 'unmask[transformers]'"
        )
    return _find(name)
