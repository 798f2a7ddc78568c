"""The OpenAPI document as a page for people: made from the document itself, without scripts, nothing from elsewhere."""

from __future__ import annotations

import html
from typing import Any

from ..jsonable import to_json

EXAMPLES: dict[str, dict[str, Any]] = {
    "/v1/diffusion": {"prompt": "Once upon a time", "length": 32, "tops": 3},
    "/v1/infill": {"text": "The {{2}} sat on the {{3}}.", "n": 2, "seed": 1},
    "/v1/completions": {"prompt": "One day", "max_tokens": 20},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Who are you?"}], "max_tokens": 64},
    "/v1/score": {"text": "The cat sat on the mat."},
    "/v1/marginals": {"text": "The {{1}} sat on the {{1}}.", "top": 3},
    "/v1/choose": {"text": "Tom was {{}}.", "choices": ["happy", "sad"]},
    "/v1/tokenize": {"text": "The {{2}} sat."},
}
SHELL = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>unmask: docs</title>
<link rel="icon" href="/page/icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="/page/replay.css">
<link rel="stylesheet" href="/page/page.css">
</head>
<body class="reference">
<header>
  <p class="mark" aria-hidden="true">unmask</p>
  <h1>The page and the API of this server</h1>
  <p class="about"><a href="/">The page</a> · <a href="/openapi.json">openapi.json</a> · version {version}</p>
</header>
<main>
<section id="guide">
<h2>What this is</h2>
<p>A masked diffusion language model starts from a row of masks and turns them into words, some in every step, in any
order. So it fills gaps as easily as it continues a text. The method is that of
<a href="https://arxiv.org/abs/2406.07524" target="_blank" rel="noreferrer">Simple and Effective Masked Diffusion
Language Models</a>.</p>
<h2>The page</h2>
<ul>
<li><b>Fill gaps</b>: select words and press Ctrl M, or write {{{{3}}}} for a gap of three tokens and {{{{2-6}}}} for
one whose length the model chooses. <b>Write</b> continues a text; <b>Score</b> shows how much each token surprises the
model. Models with a chat template have <b>Chat</b>, too.</li>
<li><b>Recommended</b> settings suit the model, and <b>Exact law</b> draws from the distribution by which it
is scored. <b>Compare</b> runs two settings side by side.</li>
<li>Point at a token for its probability and the alternatives; select tokens to rewrite them. A link, a film (GIF), a
replay (HTML) and the trace (JSON) of a text can be saved.</li>
</ul>
<h2>On the command line</h2>
<pre>unmask sample MODEL --prompt 'Once upon a time'
unmask fill MODEL
unmask chat MODEL --template plain
unmask train tiny data.source=my.txt --out runs/mine
unmask --help</pre>
</section>
<h2>The API</h2>
<nav aria-label="Paths"><ul class="paths">{paths}</ul></nav>
{sections}
</main>
</body>
</html>
"""


def api_page(document: dict[str, Any]) -> str:
    """The whole page: every path, and a table of the fields of its body."""
    operations = [
        (path, method, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    operations.sort(key=lambda one: one[1] == "get")  # what people look for comes first
    schemas = document["components"]["schemas"]
    paths = "".join(f'<li><a href="#{_anchor(path)}">{_text(path)}</a></li>' for path, _, _ in operations)
    sections = "\n".join(_section(path, method, operation, schemas) for path, method, operation in operations)
    return SHELL.format(version=_text(document["info"]["version"]), paths=paths, sections=sections)


def _section(path: str, method: str, operation: dict[str, Any], schemas: dict[str, Any]) -> str:
    parts = [f"<h2><small>{method.upper()}</small> {_text(path)}</h2>", f"<p>{_text(operation['summary'])}</p>"]
    answer = operation["responses"]["200"]
    media = " or ".join(answer["content"])
    if method == "post":
        body = operation["requestBody"]["content"]["application/json"]["schema"]
        schema = schemas[body["$ref"].rpartition("/")[2]]
        example = _text(to_json(EXAMPLES[path]).replace('":', '": ').replace(',"', ', "'))
        parts.append(
            f"<pre>curl localhost:8000{path} -H 'Content-Type: application/json' \\\n  -d '{example}'</pre>"
            f"<p>{_text(answer['description'])} ({_text(media)})</p>" + _fields(path, schema, schemas)
        )
    else:
        parts.append(f"<p>Answers with {_text(media)}.</p>")
    errors = [f"{code}: {about['description']}" for code, about in operation["responses"].items() if code != "200"]
    listed = "".join(f"<li>{_text(line)}</li>" for line in errors)
    parts.append(f"<details><summary>Errors</summary><ul>{listed}</ul></details>")
    return f'<section id="{_anchor(path)}">{"".join(parts)}</section>'


def _fields(path: str, schema: dict[str, Any], schemas: dict[str, Any]) -> str:
    needed = schema.get("required", ())
    rows = "".join(
        f'<tr><th scope="row">{_text(name)}{" (needed)" if name in needed else ""}</th>'
        f"<td>{_text(_kind(field, schemas))}</td><td>{_text(field.get('description', ''))}</td></tr>"
        for name, field in schema["properties"].items()
    )
    head = '<tr><th scope="col">Field</th><th scope="col">Value</th><th scope="col">Meaning</th></tr>'
    label = f'aria-label="Fields of {_text(path)}"'
    return f'<div class="wide" tabindex="0" role="region" {label}><table>{head}{rows}</table></div>'


def _kind(field: dict[str, Any], schemas: dict[str, Any]) -> str:
    """What a field may hold, in words."""
    if "$ref" in field:
        parts = schemas[field["$ref"].rpartition("/")[2]]["properties"]
        inner = {name: _kind(part, schemas) for name, part in parts.items() if "$ref" in str(part)}
        return "an object with " + ", ".join(name + (f" ({inner[name]})" if name in inner else "") for name in parts)
    if "anyOf" in field:
        kinds = [_kind(one, schemas) for one in field["anyOf"] if one.get("type") != "null"]
        if kinds[:2] == ["a number", "a whole number"]:
            kinds = kinds[:1]
        return " or ".join(dict.fromkeys(kinds))
    if "enum" in field:
        return ", ".join(map(str, field["enum"]))
    if field.get("type") == "array":
        many = f", at most {field['maxItems']}" if "maxItems" in field else ""
        return f"a list{many}: {_kind(field.get('items', {}), schemas)}"
    names = {"integer": "a whole number", "number": "a number", "string": "text", "boolean": "true or false"}
    return names.get(field.get("type", ""), "an object") + _limits(field)


def _limits(field: dict[str, Any]) -> str:
    bounds = [
        (field.get("minimum"), "from"),
        (field.get("exclusiveMinimum"), "above"),
        (field.get("maximum"), "to"),
        (field.get("exclusiveMaximum"), "below"),
    ]
    said = [f"{word} {value:,}" for value, word in bounds if value is not None and abs(value) < 2**31 - 1]
    return " " + " ".join(said) if said else ""


def _anchor(path: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in path).strip("-")


def _text(value: object) -> str:
    return html.escape(str(value))
