"""The bodies of requests, as pydantic models: the one place that says which fields there are and what they may hold.

Unknown fields are refused: a setting that was misspelt must not be ignored. The OpenAPI document is made from these.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, StrictStr, ValidationError

from ..evaluation import METHODS
from ..sampling.named import SAMPLERS
from ..sampling.params import SamplingParams
from .limits import Refusal

Text = Annotated[StrictStr, Field(max_length=1_000_000)]
Whole = Annotated[StrictInt, Field(ge=-(2**63), lt=2**63)]
Count = Annotated[StrictInt, Field(ge=1, lt=2**31)]
Number = Annotated[StrictFloat | StrictInt, Field(ge=-1e6, le=1e6)]
Positive = Annotated[StrictFloat | StrictInt, Field(ge=0, le=1e6)]
Share = Annotated[StrictFloat | StrictInt, Field(ge=0, le=1)]
Words = Annotated[list[Annotated[StrictStr, Field(min_length=1, max_length=1000)]], Field(max_length=16)]
Word = Annotated[StrictStr, Field(min_length=1, max_length=200)] | Annotated[StrictInt, Field(ge=0, lt=2**31)]
Pair = Annotated[list[Annotated[StrictInt, Field(ge=0)]], Field(min_length=2, max_length=2)]
NAMES = tuple(name for name in SAMPLERS if name != "order")  # which needs an order of one certain canvas
HOW = tuple(METHODS)
Model = TypeVar("Model", bound="Body")


class Body(BaseModel):
    """What all bodies share."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, protected_namespaces=())

    model: Annotated[StrictStr, Field(max_length=1000)] | None = Field(
        None, description="One of /v1/models; the first if left out."
    )


class Writing(Body):
    """How text is to be written: the settings of `unmask sample`."""

    n: Count = Field(1, description="Samples; sample i has the seed + i.")
    seed: Whole | None = Field(None, description="Drawn by the server if left out, and told in the answer.")
    sampler: Literal[NAMES] | None = Field(None, description="The model's usual one if left out.")  # type: ignore[valid-type]
    steps: Count | None = Field(None, description="T, the number of denoising steps.")
    k: Count | None = Field(None, description="Tokens a step, for orders.")
    threshold: Positive | None = Field(None, description="For confidence, entropy and margin.")
    eta: Positive | None = Field(None, description="Strength of remasking and correction.")
    temperature: Positive | None = Field(None, description="0 takes the most likely token.")
    top_p: Share | None = Field(None, description="Only the most likely tokens that hold this much.")
    top_k: Annotated[StrictInt, Field(ge=0, lt=2**31)] | None = Field(
        None, description="Only the k most likely tokens."
    )
    min_p: Share | None = Field(None, description="Only tokens at least this likely, relative to the best.")
    ban: Annotated[list[Word], Field(max_length=256)] | None = Field(None, description="Tokens that are never written.")
    min_length: Annotated[StrictInt, Field(ge=0, lt=2**31)] | None = Field(
        None, description="No end of text within the first tokens written."
    )
    label: Annotated[StrictStr, Field(max_length=200)] | Whole | None = Field(
        None, description="Of a model that was trained with labels."
    )
    guidance: Positive | None = Field(None, description="Classifier-free guidance towards the label; 1 is none.")
    stride: Count | None = Field(None, description="Write in windows that move by so many tokens.")
    stop: Annotated[StrictStr, Field(min_length=1, max_length=1000)] | Words | None = Field(
        None, description="End the text before one of these strings."
    )

    def options(self, seed: int, **more: Any) -> SamplingParams:
        """The settings that the library knows, checked by it."""
        names = (
            "sampler",
            "steps",
            "k",
            "threshold",
            "eta",
            "temperature",
            "top_p",
            "top_k",
            "min_p",
            "ban",
            "min_length",
            "label",
            "guidance",
            "stride",
        )
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        if given.get("top_k") == 0:  # how some clients say that they want no such filter
            del given["top_k"]
        if given.get("min_p") == 0:
            del given["min_p"]
        stop = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return SamplingParams(seed=seed, stop=stop, **given, **more)


class Gapped(Writing):
    """Text around gaps: a prompt, a suffix and a length, or a text with gaps."""

    prompt: Text | None = Field(None, description="What the text begins with.")
    suffix: Text | None = Field(None, description="What it ends with.")
    text: Text | None = Field(None, description="Text with gaps: {{3}} is a gap of 3 tokens, {{2-6}} one of 2 to 6.")
    length: Count | None = Field(None, description="Tokens in all; the model's length if left out.")
    stop_at_eos: StrictBool = Field(False, description="End the text at an end-of-text token.")


class DiffusionBody(Gapped):
    """POST /v1/diffusion."""

    tops: Annotated[StrictInt, Field(ge=0, le=10)] = Field(0, description="Alternatives of every written token.")


class InfillBody(Gapped):
    """POST /v1/infill."""

    tokens: StrictBool = Field(False, description="Also tell step and probability of every token.")


class StreamOptions(BaseModel):
    """What a stream ends with."""

    model_config = ConfigDict(extra="forbid")

    include_usage: StrictBool = False
    include_obfuscation: StrictBool | None = None


class CompletionBody(Writing):
    """POST /v1/completions, as OpenAI's clients send it; settings of diffusion go beside it."""

    prompt: Text | Annotated[list[Text], Field(min_length=1, max_length=64)] = Field(
        "", description="What the text begins with, or a list of such texts."
    )
    suffix: Text | None = Field(None, description="What comes after: the text between is written.")
    max_tokens: Count | None = Field(None, description="Tokens to write; 16 if left out.")
    stream: StrictBool | None = Field(None, description="Send the text as it becomes fixed.")
    stream_options: StreamOptions | None = None
    echo: StrictBool | None = Field(None, description="Send the prompt back, too.")
    logprobs: Annotated[StrictInt, Field(ge=0, le=10)] | None = Field(
        None, description="Log-probabilities of the written tokens and of so many alternatives."
    )
    ignore_eos: StrictBool = Field(False, description="Go on after an end of text.")
    best_of: Count | None = Field(None, description="Only what n is.")
    presence_penalty: Number | None = Field(None, description="Only 0.")
    frequency_penalty: Number | None = Field(None, description="Only 0.")
    logit_bias: dict[str, Number] | None = Field(None, description="Only empty; see ban.")
    user: Annotated[StrictStr, Field(max_length=1000)] | None = Field(None, description="Ignored.")


class ScoreBody(Body):
    """POST /v1/score."""

    text: Text | None = None
    texts: Annotated[list[Text], Field(min_length=1, max_length=1000)] | None = None
    method: Literal[HOW] | None = Field(None, description="The model's usual one if left out.")  # type: ignore[valid-type]
    draws: Annotated[StrictInt, Field(ge=1, le=256)] | None = None
    calls: Annotated[StrictInt, Field(ge=1, le=256)] | None = None
    orders: Annotated[StrictInt, Field(ge=1, le=256)] | None = None
    seed: Whole = 0
    label: Annotated[StrictStr, Field(max_length=200)] | Whole | None = None
    spans: Annotated[list[Pair], Field(min_length=1, max_length=64)] | None = Field(
        None, description="Of one text: [start, end) in characters; only these are scored, given the rest."
    )


class TokenizeBody(Body):
    """POST /v1/tokenize."""

    text: Text = Field(description="A text; gaps, as {{3}}, are so many masked tokens.")


def read(kind: type[Model], body: bytes) -> Model:
    """A body as a model, or one sentence on why it is none."""
    try:
        data = json.loads(body.decode("utf-8"), parse_constant=_no_number)
    except UnicodeDecodeError:
        raise Refusal(400, "the body is not UTF-8") from None
    except RecursionError:
        raise Refusal(400, "the body is JSON that is nested too deeply") from None
    except ValueError as error:
        where = f" (line {error.lineno}, column {error.colno})" if isinstance(error, json.JSONDecodeError) else ""
        raise Refusal(400, f"the body is not JSON{where}") from None
    if not isinstance(data, dict):
        raise Refusal(400, "the body must be a JSON object")
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        first = _telling(error.errors(include_url=False, include_input=False))
        place = first["loc"][0] if first["loc"] else None
        name = str(place) if isinstance(place, str) else None
        if first["type"] == "extra_forbidden":
            raise Refusal(400, f"unknown field {str(name)[:60]!r}; see /openapi.json", param=str(name)[:60]) from None
        said = first["msg"][0].lower() + first["msg"][1:]
        raise Refusal(400, f"{name or 'the body'}: {said}", param=name) from None


def _telling(errors: Sequence[Any]) -> Any:
    """Of the errors of the first field the one that says most: a field of several kinds has one for each of them."""
    own = [one for one in errors if one["loc"][:1] == errors[0]["loc"][:1]]
    return next((one for one in own if not one["type"].endswith("_type")), own[0])


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")
