"""Lines that hold a prompt's tokens, or its text: SGLang, LLMServingSim, prompts of anybody.

Sources: github.com/sgl-project/sglang (token_trace of its benchmark's datasets),
github.com/casys-kaist/LLMServingSim. Nothing here tokenizes: of a text the bytes are counted.
"""

from typing import Any

from apclab.traces.ids import chain, token_ids
from apclab.traces.reading import Reading
from apclab.traces.request import (
    TraceError,
    TraceRequest,
    list_of,
    names_of,
    parse_json,
    parse_object,
    seconds,
    shown,
    whole,
)

BYTES = "bytes of UTF-8 text stand in for tokens, no tokenizer ran: prompts"
PROMPT_NAMES = ("prompt_token_ids", "token_ids", "input_ids", "prompt", "text", "messages")


def token_trace(text: bytes, reading: Reading) -> tuple[TraceRequest]:
    """A line of SGLang's token_trace; `ts` in seconds, all at the start without it."""
    fields = parse_object(text)
    input_len, ids = token_ids(fields, "input_tokens", reading.block_size)
    _agrees(fields, "num_input_tokens", input_len)
    if "output_tokens" in fields:
        output_len = len(list_of(fields, "output_tokens"))
        _agrees(fields, "num_output_tokens", output_len)
    else:
        output_len = whole(fields, "num_output_tokens", 0)
    at = seconds(fields, "ts") if fields.get("ts") is not None else 0.0
    return (TraceRequest(at, _some(input_len, "input_tokens"), output_len, ids),)


def llmservingsim(text: bytes, reading: Reading) -> tuple[TraceRequest]:
    """A line of LLMServingSim's JSON Lines, with token ids or without; times in nanoseconds."""
    fields = parse_object(text)
    input_len = whole(fields, "input_toks", 1)
    ids: tuple[int, ...] = ()
    if fields.get("input_tok_ids") is None:
        reading.notes["requests without input_tok_ids, whose prefix is not known"] += 1
    else:
        held, ids = token_ids(fields, "input_tok_ids", reading.block_size)
        _agrees(fields, "input_toks", held)
    at = seconds(fields, "arrival_time_ns", 1e-9)
    return (TraceRequest(at, input_len, whole(fields, "output_toks", 0), ids),)


def prompts(text: bytes, reading: Reading) -> tuple[TraceRequest]:
    """A prompt: a list of token ids, a text, or an object with one; all are there at the start."""
    found = parse_json(text)
    name = "prompt"
    if isinstance(found, dict):
        name = next((name for name in PROMPT_NAMES if name in found), "")
        if not name:
            known = ", ".join(PROMPT_NAMES)
            raise TraceError(f"expected one of {known}, the object holds {names_of(found)}")
        found = found[name]
    if name == "messages":
        found = _said(found)
    kind = "text" if isinstance(found, str) else "token ids"
    reading.first = reading.first or kind
    if kind != reading.first:
        raise TraceError(f"expected {reading.first} as above, got {kind}")
    if isinstance(found, str):
        reading.notes[BYTES] += 1
        content, size = _bytes(found), reading.block_size
        ids = chain(content[at : at + size] for at in range(0, len(content), size))
        return (TraceRequest(0.0, _some(len(content), name), 0, ids),)
    input_len, ids = token_ids({name: found}, name, reading.block_size)
    return (TraceRequest(0.0, _some(input_len, name), 0, ids),)


def vllm_custom(text: bytes, reading: Reading) -> tuple[TraceRequest]:
    """A line of vLLM's custom dataset as a length: its text is counted in bytes."""
    fields = parse_object(text)
    prompt = fields.get("prompt")
    if not isinstance(prompt, str):
        raise TraceError(f"prompt must be a text, got {shown(prompt)}")
    reading.notes[BYTES] += 1
    output_len = whole(fields, "output_tokens", 0) if "output_tokens" in fields else 0
    return (TraceRequest(0.0, _some(len(_bytes(prompt)), "prompt"), output_len),)


def _bytes(text: str) -> bytes:
    # JSON may hold half of a pair of surrogates
    return text.encode("utf-8", "surrogatepass")


def _said(messages: Any) -> str:
    """Roles and texts of a chat, one after the other; the model's own template is not known."""
    if not isinstance(messages, list) or not all(isinstance(said, dict) for said in messages):
        raise TraceError(f"messages must be a list of objects, got {shown(messages)}")
    lines = []
    for said in messages:
        content = said.get("content")
        if isinstance(content, list):
            parts = [part.get("text") for part in content if isinstance(part, dict)]
            content = "".join(part for part in parts if isinstance(part, str))
        lines.append(f"{said.get('role')}\n{content if isinstance(content, str) else ''}\n")
    return "".join(lines)


def _agrees(fields: dict[str, Any], name: str, held: int) -> None:
    if fields.get(name) is not None and (said := whole(fields, name, 0)) != held:
        raise TraceError(f"{name} must be the number of tokens, {held}, got {said}")


def _some(count: int, name: str) -> int:
    return whole({name: count}, name, 1)
