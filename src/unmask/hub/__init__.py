"""Models on disk and on the Hugging Face Hub: loading by name, portable folders, checkpoints, other formats."""

from .card import model_card
from .push import push_to_hub
from .resolve import PRETRAINED, find, load, load_classifier

__all__ = ["PRETRAINED", "find", "load", "load_classifier", "model_card", "push_to_hub"]
