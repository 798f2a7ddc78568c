"""The portable folder of a model: config.json, model.safetensors, tokenizer files and a card.

It is the layout of the published MDLM weights: we use the same tensor names, and config.json has the published keys.
What they do not cover (schedule, bound, layout of rows, labels) is stored under "unmask". A config.json without that
part is a published one; the rest is then as in the paper's run on OpenWebText. Nothing in such a folder is ever
executed: JSON and safetensors are data, and `auto_map` is ignored.

Other masked language models (the BERT family) are read too, with config.json and tensors as in transformers, and are
written in the same form with our "unmask" part added.

Modules: `terms` what a config.json can say, `published` those of MDLM, SEDD, BD3-LM and BlockGen, `encoder_folders`
masked language models, `family_folders` Llama, Qwen and the diffusion models made from them, `dna_layouts` Caduceus,
Mamba and HyenaDNA, `ours` the one we write, `weights` the tensors, `folder` the files together.
How foreign files describe a network is next to that network: `networks/foreign`.
"""

from ...networks.foreign.fields import value
from .encoder_folders import NoHead, named, with_length, with_tokenizer
from .folder import (
    check_tokenizer,
    is_folder,
    load_tokenizer,
    read_folder,
    refuse_existing,
    verify_folder,
    write_files,
    write_folder,
)
from .ours import FORMAT, describe, from_json, to_json, to_published
from .published import need_scale, noise_schedule, paper_config, read_network
from .terms import (
    CARD,
    CHECKPOINT,
    CONFIG,
    COVERED,
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
    is_readable,
    known_vocab,
    needs_mask,
)
from .weights import (
    INV_FREQ,
    blueprint,
    check,
    check_rotary,
    fill,
    filled,
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
    "COVERED",
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
    "filled",
    "from_json",
    "inv_freq",
    "is_folder",
    "is_published",
    "is_readable",
    "known_vocab",
    "load_tokenizer",
    "named",
    "need_scale",
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
    "verify_folder",
    "with_length",
    "with_tokenizer",
    "write_files",
    "write_folder",
]  # fmt: skip
