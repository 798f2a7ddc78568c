"""The bodies of requests, as pydantic models. Fields that say how text is written come from the schema of settings.

Unknown fields are refused: a setting that was misspelt must not be ignored. The OpenAPI document is made from these.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    ValidationError,
    create_model,
)
from pydantic_core import PydanticCustomError

from ..constraints import json_object
from ..data.canvas import ANSWER_TOKENS
from ..errors import nearest
from ..evaluation import METHODS
from ..sampling.params import SAMPLERS, default_words, settings_on
from ..sampling.settings import KINDS, NUMBERS, Setting
from .limits import Refusal

DEEPEST = 64  # nesting of a JSON object in a body


def _shallow(value: Any, most: int) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return most > 0 and all(_shallow(part, most - 1) for part in inner)


def _writable(value: dict[str, Any]) -> dict[str, Any]:
    """A JSON object that an answer can contain."""
    if not _shallow(value, DEEPEST):
        raise PydanticCustomError("too_deep", f"must not be nested more than {DEEPEST} deep")
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise PydanticCustomError("no_text", "must not have half a surrogate pair in its texts") from None
    return value


JsonObject = Annotated[dict[str, Any], AfterValidator(_writable)]
Text = Annotated[StrictStr, Field(max_length=1_000_000)]
Whole = Annotated[StrictInt, Field(ge=-(2**63), lt=2**63)]
Count = Annotated[StrictInt, Field(ge=1, lt=2**31)]
Number = Annotated[StrictFloat | StrictInt, Field(ge=-1e6, le=1e6)]
Phrase = Annotated[StrictStr, Field(min_length=1, max_length=1000)]
Word = Annotated[StrictStr, Field(min_length=1, max_length=200)] | Annotated[StrictInt, Field(ge=0, lt=2**31)]
Label = Annotated[StrictStr, Field(max_length=200)] | Whole
Pair = Annotated[list[Annotated[StrictInt, Field(ge=0)]], Field(min_length=2, max_length=2)]
FORMS = ("regex", "schema", "choices", "where")  # settings that say what gaps must be
ANSWERS = f"If left out, {ANSWER_TOKENS}, or as many as the model has room for."
NAMES = tuple(SAMPLERS)
HOW = tuple(METHODS)
Model = TypeVar("Model", bound="Body")


class Body(BaseModel):
    """What all bodies share."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, protected_namespaces=())

    model: Annotated[StrictStr, Field(max_length=1000)] | None = Field(
        None, description="One of /v1/models; the first if left out."
    )


def setting_type(spec: Setting) -> Any:
    """What JSON may hold for a setting."""
    if spec.kind in NUMBERS:
        whole = spec.kind != "number"
        least = 0 if spec.off else spec.least
        low: dict[str, Any] = {"ge": 1} if whole else {}
        high: dict[str, Any] = {"lt": 2**31} if whole else {"le": 1e6}
        if least is not None or spec.above is not None:
            low = {"ge": least} if spec.above is None else {"gt": spec.above}
        if spec.most is not None or spec.below is not None:
            high = {"le": spec.most} if spec.below is None else {"lt": spec.below}
        number: Any = Annotated[StrictInt if whole else StrictFloat | StrictInt, Field(**low | high)]
        return number | Literal["full"] if spec.kind == "size" else number
    most = Field(max_length=None if spec.most is None else int(spec.most))
    return {
        "flag": StrictBool,
        "choice": Literal[spec.choices],
        "sampler": Literal[NAMES],
        "label": Label,
        "wholes": Annotated[list[Annotated[StrictInt, Field(ge=0, lt=2**31)]], most],
        "pair": Annotated[
            list[Annotated[StrictFloat | StrictInt, Field(ge=0, le=1)]], Field(min_length=2, max_length=2)
        ],
        "tokens": Annotated[list[Word], most],
        "text": Annotated[StrictStr, most],
        "schema": JsonObject,
        "texts": Phrase | Annotated[list[Phrase], most],
        "rules": Annotated[dict[Annotated[str, Field(pattern="^[0-9]{1,9}$")], Annotated[list[Word], most]], most],
    }[spec.kind]


if TYPE_CHECKING:
    Pattern = str
    Choices = list[str] | str
else:
    Pattern, Choices = (setting_type(settings_on("http")[name]) for name in ("regex", "choices"))


def setting_fields(names: Iterable[str]) -> dict[str, Any]:
    """The fields of a body for these settings; None means not set."""
    schema = settings_on("http")
    return {
        name: (setting_type(schema[name]) | None, Field(None, description=f"{schema[name].help}{_default(name)}."))
        for name in names
    }


def _default(name: str) -> str:
    words = {"seed": "drawn by the server", "sampler": "what fits the model"}.get(name, default_words(name))
    return f" (default: {words})" if words else ""


EVERYWHERE = [name for name, spec in settings_on("http").items() if "completions" not in spec.absent]
if TYPE_CHECKING:

    class WritingFields(Body):
        """Fields that the server reads by name."""

        seed: int | None
        steps: int | None
        corrections: int | None
        stride: int | None
        choices: str | list[str] | None

    class GappedFields(Body):
        """Settings that have another name in completions."""

        stop_at_eos: bool | None
else:
    with warnings.catch_warnings():  # a field is called schema, as is an old method of pydantic
        warnings.filterwarnings("ignore", "Field name .schema. ", UserWarning)
        WritingFields = create_model("WritingFields", __base__=Body, **setting_fields(EVERYWHERE))
    GappedFields = create_model(
        "GappedFields", __base__=Body, **setting_fields(name for name in settings_on("http") if name not in EVERYWHERE)
    )


class Writing(WritingFields):
    """How text is to be written: the settings of `unmask sample`."""

    n: Count = Field(1, description="Samples; sample i has the seed + i.")
    exact: StrictBool = Field(
        False, description="Draw from the model's plain law, and not with the settings that it recommends."
    )

    def explicit(self) -> dict[str, Any]:
        """The settings that were given, as the library knows them; what is switched off is at its default."""
        if self.choices == []:
            raise Refusal(400, "choices must name at least one text", param="choices")
        return {
            name: spec.default if spec.switches_off(value) else spec.from_json(value)
            for name, spec in settings_on("http").items()
            if (value := getattr(self, name, None)) is not None
        }

    @property
    def has_form(self) -> bool:
        """Whether gaps must have a form, which is compiled."""
        return any(name in FORMS for name in self.explicit())


class Gapped(GappedFields, Writing):
    """What to write: a prompt, a suffix and a length, or a text with gaps."""

    prompt: Text | None = Field(None, description="What the text begins with.")
    suffix: Text | None = Field(None, description="What it ends with.")
    text: Text | None = Field(None, description="Text with gaps: {{3}} is a gap of 3 tokens, {{2-6}} one of 2 to 6.")
    length: Count | None = Field(None, description="Tokens in total; the model's length if left out.")


class ContentPart(BaseModel):
    """A part of a message; only text is read."""

    model_config = ConfigDict(extra="allow")

    type: Annotated[StrictStr, Field(max_length=100)]
    text: Text | None = None


class ChatMessage(BaseModel):
    """A message of a conversation. Other fields than these must be empty."""

    model_config = ConfigDict(extra="allow")

    role: Annotated[StrictStr, Field(max_length=100)]  # system (or developer), user or assistant
    content: Text | Annotated[list[ContentPart], Field(max_length=1000)] | None = None
    name: Annotated[StrictStr, Field(max_length=1000)] | None = None  # ignored


Messages = Annotated[list[ChatMessage], Field(max_length=4096)]


class DiffusionBody(Gapped):
    """POST /v1/diffusion."""

    messages: Messages | None = Field(None, description="A conversation, in place of a prompt: its answer is written.")
    max_tokens: Count | None = Field(None, description=f"With messages: tokens of the answer. {ANSWERS}")
    tops: Annotated[StrictInt, Field(ge=0, le=10)] = Field(
        0, description="Number of alternatives to send for every written token."
    )


class InfillBody(Gapped):
    """POST /v1/infill."""

    tokens: StrictBool = Field(False, description="Also send the step and probability of every token.")


class StreamOptions(BaseModel):
    """Options of a stream."""

    model_config = ConfigDict(extra="forbid")

    include_usage: StrictBool = False
    include_obfuscation: StrictBool | None = None


class NamedSchema(BaseModel):
    """A JSON schema, as OpenAI's clients wrap it."""

    model_config = ConfigDict(extra="forbid")

    content: JsonObject = Field(alias="schema")
    name: StrictStr | None = None  # ignored, as are the others: a text is always valid
    description: StrictStr | None = None
    strict: StrictBool | None = None


class ResponseFormat(BaseModel):
    """The form of a text, as OpenAI's clients ask for it."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None


class ClientBody(Writing):
    """What OpenAI's clients send for completions and for chats; settings of diffusion go beside it."""

    stream: StrictBool | None = Field(None, description="Send the text as soon as it is final.")
    stream_options: StreamOptions | None = None
    ignore_eos: StrictBool = Field(False, description="Continue after an end-of-text token.")
    presence_penalty: Number | None = Field(None, description="Only 0.")
    frequency_penalty: Number | None = Field(None, description="Only 0.")
    logit_bias: dict[str, Number] | None = Field(None, description="Must be empty; see ban.")
    user: Annotated[StrictStr, Field(max_length=1000)] | None = Field(None, description="Ignored.")
    response_format: ResponseFormat | None = Field(
        None, description="What the text must be: anything, or JSON; only the schema of a json_schema matters."
    )
    guided_regex: Pattern | None = Field(None, description="vLLM's name of regex.")
    guided_json: JsonObject | Text | None = Field(None, description="vLLM's name of schema; or its text.")
    guided_choice: Choices | None = Field(None, description="vLLM's name of choices.")

    def explicit(self) -> dict[str, Any]:
        """The settings that were given, the form of the text by whichever of its names."""
        result = super().explicit()
        for name, meaning, value in self._forms():
            if value == []:
                raise Refusal(400, f"{name} must name at least one text", param=name)
            if taken := [form for form in FORMS if form in result]:
                raise Refusal(400, f"{name} and {taken[0]} both say what the text must be; give one", param=name)
            result[meaning] = [value] if meaning == "choices" and isinstance(value, str) else value
        return result

    def _forms(self) -> Iterator[tuple[str, str, Any]]:
        """The form of the text as other interfaces know it: their name, our setting, its value."""
        for name, meaning in (("guided_regex", "regex"), ("guided_json", "schema"), ("guided_choice", "choices")):
            if (value := getattr(self, name)) is not None:
                yield name, meaning, value
        asked, name = self.response_format, "response_format"
        if asked is None:
            return
        if (asked.json_schema is not None) != (asked.type == "json_schema"):
            raise Refusal(400, "a response_format of the type json_schema, and no other, has a json_schema", param=name)
        if asked.json_schema is not None:
            yield name, "schema", asked.json_schema.content
        elif asked.type == "json_object":
            yield name, "where", json_object()


class CompletionBody(ClientBody):
    """POST /v1/completions."""

    prompt: Text | Annotated[list[Text], Field(min_length=1, max_length=64)] = Field(
        "", description="What the text begins with, or a list of such texts."
    )
    suffix: Text | None = Field(None, description="What comes after the text that is written.")
    max_tokens: Count | None = Field(None, description="Tokens to write; 16 if left out.")
    echo: StrictBool | None = Field(None, description="Send the prompt back, too.")
    logprobs: Annotated[StrictInt, Field(ge=0, le=10)] | None = Field(
        None, description="Log-probabilities of the written tokens and of this many alternatives."
    )
    best_of: Count | None = Field(None, description="Must equal n.")

    @property
    def alternatives(self) -> int | None:
        """How many alternatives to name for each token; None: no log-probabilities at all."""
        return self.logprobs


class ChatBody(ClientBody):
    """POST /v1/chat/completions."""

    messages: Messages = Field(
        description="The conversation so far: perhaps one of the role system, then user and assistant take turns."
    )
    max_tokens: Count | None = Field(None, description=f"Tokens of the answer. {ANSWERS}")
    max_completion_tokens: Count | None = Field(None, description="The newer name of max_tokens.")
    logprobs: StrictBool | None = Field(None, description="Log-probabilities of the written tokens.")
    top_logprobs: Annotated[StrictInt, Field(ge=0, le=10)] | None = Field(
        None, description="With logprobs: also of this many alternatives."
    )

    @property
    def alternatives(self) -> int | None:
        """How many alternatives to name for each token; None: no log-probabilities at all."""
        return self.top_logprobs or 0 if self.logprobs else None


class ScoreBody(Body):
    """POST /v1/score."""

    text: Text | None = None
    texts: Annotated[list[Text], Field(min_length=1, max_length=1000)] | None = None
    method: Literal[HOW] | None = Field(None, description="The model's default if left out.")  # type: ignore[valid-type]
    draws: Annotated[StrictInt, Field(ge=1, le=256)] | None = None
    calls: Annotated[StrictInt, Field(ge=1, le=256)] | None = None
    orders: Annotated[StrictInt, Field(ge=1, le=256)] | None = None
    block: setting_type(settings_on("http")["block"]) | None = Field(  # type: ignore[valid-type]
        None, description="Tokens of a block, of a model with blocks, or full: the whole row; its own if left out."
    )
    seed: Whole = 0
    label: Label | None = None
    spans: Annotated[list[Pair], Field(min_length=1, max_length=64)] | None = Field(
        None, description="Of one text: [start, end) in characters; only these are scored, given the rest."
    )


class MarginalsBody(Body):
    """POST /v1/marginals."""

    text: Text | None = Field(None, description="Text with gaps: {{3}} is a gap of 3 tokens, {{2-6}} one of 2 to 6.")
    texts: Annotated[list[Text], Field(min_length=1, max_length=1000)] | None = Field(
        None, description="Several such texts."
    )
    top: Count = Field(5, description="Tokens to send for every open position, the likeliest first.")
    label: Label | None = None


class ChooseBody(Body):
    """POST /v1/choose."""

    text: Text = Field(description="A text with one gap, {{}}; without one the choices stand at its end.")
    choices: Annotated[list[Text], Field(min_length=2, max_length=1000)] = Field(description="Texts for the gap.")
    seed: Whole = 0
    label: Label | None = None


class TokenizeBody(Body):
    """POST /v1/tokenize."""

    text: Text = Field(description="A text; a gap such as {{3}} counts as that many masked tokens.")


def read(kind: type[Model], body: bytes) -> Model:
    """A body as a model, or a refusal that says why it is not one."""
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
        raise _explained(kind, _telling(error.errors(include_url=False))) from None


# Names that other interfaces have for what a field means here; the first that a body has is suggested.
ELSEWHERE = {
    "max_tokens": ("length",),
    "max_new_tokens": ("max_tokens", "length"),
    "max_length": ("max_tokens", "length"),
    "length": ("max_tokens",),
    "num_samples": ("n",),
    "num_return_sequences": ("n",),
    "samples": ("n",),
    "input": ("prompt", "text"),
    "inputs": ("prompt", "text"),
    "messages": ("prompt", "text"),
    "top_logprobs": ("logprobs", "tops", "top"),
    "logprobs": ("tops", "top"),
    "tops": ("logprobs", "top"),
    "top_k": ("top",),
    "text": ("prompt",),
    "stop_at_eos": ("ignore_eos",),
    "ignore_eos": ("stop_at_eos",),
}


def _explained(kind: type[Body], error: Any) -> Refusal:
    """What is wrong with a field, and what may have been meant."""
    place = [part for part in error["loc"] if isinstance(part, str)]
    name = place[0] if place else None
    if error["type"] == "extra_forbidden":
        known = StreamOptions.model_fields if place[:1] == ["stream_options"] and place[1:] else kind.model_fields
        meant = [name for name in ELSEWHERE.get(place[-1], ()) if name in known]
        hint = f" (did you mean {meant[0]!r}?)" if meant else nearest(place[-1][:60], known)
        return Refusal(400, f"unknown field {place[-1][:60]!r}{hint}; /docs lists them", param=place[-1][:60])
    if error["type"] == "literal_error" and isinstance(error["input"], str):
        known = error["ctx"]["expected"].replace("' or '", "', '").strip("'").split("', '")
        hint = nearest(error["input"][:60], known)
        if known == ["full"]:  # or a number
            return Refusal(400, f"{name}={error['input'][:60]!r} must be {KINDS['size'].name}", param=name)
        return Refusal(
            400, f"unknown {name} {error['input'][:60]!r}{hint}; choose one of {', '.join(known)}", param=name
        )
    said = error["msg"][0].lower() + error["msg"][1:]
    return Refusal(400, f"{name or 'the body'}: {said}", param=name)


def _telling(errors: Sequence[Any]) -> Any:
    """The most helpful error of the first field: a field that accepts several types has one error for each.

    An unknown field comes before a missing one, whose name it may be meant to be.
    """
    errors = sorted(errors, key=lambda one: one["type"] != "extra_forbidden")
    same_field = [one for one in errors if one["loc"][:1] == errors[0]["loc"][:1]]
    return next((one for one in same_field if not one["type"].endswith("_type")), same_field[0])


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")
