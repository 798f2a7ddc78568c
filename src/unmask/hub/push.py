"""An `unmask.LM` on the Hugging Face Hub: a portable folder with a card, and no code."""

from __future__ import annotations

import inspect
import tempfile
from pathlib import Path
from typing import Any

from ..data.online import hub, reason
from ..errors import nearest
from ..files import MANIFEST
from ..lm import LM
from ..types import UserError
from .card import model_card
from .layout import CARD, FILES, write_folder


def push_to_hub(
    lm: LM,
    repo_id: str,
    *,
    private: bool | None = None,
    token: str | None = None,
    dtype: str = "float32",
    commit_message: str = "Upload a model of unmask",
    revision: str | None = None,
    **about: Any,
) -> str:
    """Upload a model and its card, and return the URL of the commit; `about` as in `model_card`."""
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(repo_id)
    except ValueError as error:
        raise UserError(f"{repo_id!r} is not the name of a repository: {reason(error)}") from None
    parameters = sum(p.numel() for p in lm.model.parameters())
    known = inspect.signature(model_card).parameters
    for name in about:
        if name not in known or name in ("config", "repo_id", "parameters", "recommended"):
            raise UserError(f"push_to_hub has no argument {name!r}{nearest(name, known)}")
    card = model_card(lm.config, repo_id, parameters=parameters, recommended=lm.recommended, **about)
    if token is None and huggingface_hub.get_token() is None:
        raise UserError("no Hugging Face token: log in with `hf auth login`, set HF_TOKEN, or give token=")
    with tempfile.TemporaryDirectory() as temporary, hub() as online:
        if not online:
            raise UserError(
                "the Hugging Face Hub cannot be reached; lm.save_pretrained writes a folder to upload later"
            )
        folder = write_folder(
            Path(temporary) / "model",
            lm.model,
            lm.tokenizer,
            lm.config,
            lm.labels,
            dtype,
            card,
            lm.recommended,
            lm.chat_template,
        )
        (folder / MANIFEST).unlink()  # the Hub has checksums of its own, and files are edited there
        api = huggingface_hub.HfApi(token=token)
        try:
            name = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
            done = api.upload_folder(
                repo_id=name,
                folder_path=folder,
                allow_patterns=[*FILES, CARD],
                commit_message=commit_message,
                revision=revision,
            )
        except HfHubHTTPError as error:
            why = f"the Hugging Face Hub refused {repo_id}: {reason(error)}; check the name and the token"
            raise UserError(why) from None
    return str(done)
