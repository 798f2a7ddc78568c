"""The folder in which a model travels: config.json, model.safetensors, tokenizer files and a card.

It is the layout of the published MDLM weights: the tensor names are ours anyway, and config.json has the
published keys. What they do not say (schedule, bound, how rows are laid out, labels) stands under "unmask". A
config.json without that part is a published one: the rest is what the paper says of OpenWebText.

Nothing of such a folder is ever executed: JSON and safetensors are data, and `auto_map` is not looked at.

Masked language models of others (BERT and its kin) are read too: with config.json and tensors as transformers has them,
and written so again, with our "unmask" part beside.

Modules: `terms` what a config.json can say, `published` MDLM's and SEDD's, `encoder_folders` masked language models,
`dna_layouts` Caduceus, Mamba and HyenaDNA, `ours` the one we write, `weights` the tensors, `folder` the files together.
What the files of others say of a network stands beside that network: `networks/foreign`.
"""

from ...networks.foreign.fields import value
from .encoder_folders import NoHead, named, with_tokenizer
from .folder import (
    check_tokenizer,
    is_folder,
    load_tokenizer,
    read_folder,
    refuse_existing,
    write_files,
    write_folder,
)
from .ours import FORMAT, describe, from_json, to_json, to_published
from .published import noise_schedule, paper_config, read_network
from .terms import (
    CARD,
    CHECKPOINT,
    CONFIG,
    DTYPES,
    FILES,
    GPT2,
    INDEX,
    PICKLE,
    ROLES,
    SHAPE,
    WEIGHTS,
    Described,
    is_published,
    known_vocab,
    needs_mask,
)
from .weights import (
    INV_FREQ,
    blueprint,
    check,
    check_rotary,
    fill,
    inv_freq,
    our_names,
    read_tensors,
    read_weights,
    tensors_of,
)

__all__ = [
    "CARD",
    "CHECKPOINT",
    "CONFIG",
    "DTYPES",
    "FILES",
    "FORMAT",
    "GPT2",
    "INDEX",
    "INV_FREQ",
    "PICKLE",
    "ROLES",
    "SHAPE",
    "WEIGHTS",
    "Described",
    "NoHead",
    "blueprint",
    "check",
    "check_rotary",
    "check_tokenizer",
    "describe",
    "fill",
    "from_json",
    "inv_freq",
    "is_folder",
    "is_published",
    "known_vocab",
    "load_tokenizer",
    "named",
    "needs_mask",
    "noise_schedule",
    "our_names",
    "paper_config",
    "read_folder",
    "read_network",
    "read_tensors",
    "read_weights",
    "refuse_existing",
    "tensors_of",
    "to_json",
    "to_published",
    "value",
    "with_tokenizer",
    "write_files",
    "write_folder",
]  # fmt: skip
