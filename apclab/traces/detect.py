"""Which format a trace has, by what its start holds. Reads no further."""

import re

from apclab.traces.request import TraceError
from apclab.traces.tables import AZURE, AZURE_LMM

FORMATS = (
    *("mooncake", "bailian", "azure", "kv-cache-tester", "lengths", "sglang", "llmservingsim"),
    *("dynamo", "tracelab", "trie", "burstgpt", "vllm-custom", "prompts"),
)
# what tells the formats of JSON apart: names that no other one before it in this list has
_NAMES = (
    ("dynamo", {"input_sequence_hashes", "event_time_unix_ms"}),
    ("trie", {"input_prompt_length"}),
    ("tracelab", {"newly_append_tokens", "input_tokens_total"}),
    ("kv-cache-tester", {"requests", "hash_id_scope"}),
    ("bailian", {"chat_id", "turn", "parent_chat_id"}),
    ("mooncake", {"hash_ids", "input_length"}),
    ("llmservingsim", {"input_toks"}),
    ("sglang", {"input_tokens"}),
    ("sharegpt", {"conversations", "conversation"}),
    ("vllm-custom", {"output_tokens", "expected_output_len"}),
    ("prompts", {"prompt_token_ids", "token_ids", "input_ids", "prompt", "messages", "text"}),
    ("mooncake", {"timestamp", "created_time"}),
)
CUT_HERE = ("sglang", "llmservingsim", "tracelab", "trie", "prompts")
LENGTHS = ("azure", "burstgpt", "lengths")
# formats of text: what to say instead of reading them
_TEXT = {
    "sharegpt": "ShareGPT's conversations: text, in which no prefix is known without a tokenizer; "
    "write its prompts as JSON Lines and take --prompts (format='prompts')",
    "vllm-custom": "vLLM's custom dataset: text, in which no prefix is known without a tokenizer; "
    "--prompts (format='prompts') compares its bytes instead, --as-lengths reads lengths in bytes, "
    "with nothing shared",
    "prompts": "prompts without times or lengths of answers; --prompts (format='prompts') asks how "
    "cache-friendly they are",
}
_BLOCK_SIZES = {"mooncake": 512, "bailian": 16}
BLOCK_SIZE = 16  # vLLM's, where tokens or lengths are cut into blocks here


def format_of(start: bytes) -> str:
    """Name of the format of a trace that starts so.

    Raises:
        TraceError: it is none that is known.
    """
    first = start.splitlines()[0].strip()
    if start.startswith(b"{"):
        if first == b"{":  # an object over many lines is a file of one session
            return "kv-cache-tester"
        names = _names(first)
        for name, known in _NAMES:
            if names & known:
                return name
    elif start.startswith(b"["):
        if b'"conversations"' in start:
            return "sharegpt"
        if re.match(rb"\[\s*\d", first):
            return "prompts"
    elif start.startswith(b'"'):
        return "prompts"
    elif first.removeprefix(b"\xef\xbb\xbf").decode("ascii", "replace") in (AZURE, AZURE_LMM):
        return "azure"
    elif b"Request tokens,Response tokens" in first:
        return "burstgpt"
    elif re.fullmatch(rb"-?\d+\s*,\s*-?\d+", first):
        return "lengths"
    raise TraceError(
        f"neither {', '.join(FORMATS)}; the file starts with "
        f"{start[:60]!r} (name its format if that is a broken line)"
    )


def _names(line: bytes) -> set[str]:
    return {name.decode() for name in re.findall(rb'"(\w{1,40})"\s*:', line)}


def refuse_text(name: str, *, as_lengths: bool) -> None:
    """Raise TraceError for a format that holds text, unless its lengths are all that is asked."""
    if name in _TEXT and not (as_lengths and name == "vllm-custom"):
        raise TraceError(_TEXT[name])


def block_size_of(name: str, start: bytes) -> int | None:
    """Tokens of a block as the start of a trace says it, or its format's; None: it knows none."""
    if name in LENGTHS or name == "vllm-custom":
        return None
    field = {"mooncake": b"block_size", "dynamo": b"trace_block_size"}.get(name)
    if field and (said := re.search(rb'"%s"\s*:\s*([1-9]\d{0,8})\b' % field, start)):
        return int(said[1])
    return _BLOCK_SIZES.get(name, BLOCK_SIZE)
