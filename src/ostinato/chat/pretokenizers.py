"""How text is cut into words before byte pairs are merged: a table from the name of a rule to the rule.

Knows the regular expressions and the defaults that come with a name. Must not know the vocabulary. To add a
rule is to add a line to `RULES`. Next on the request's path: `byte_bpe.py`.

The expressions are facts of the published tokenizers (the `pre_tokenizer` entries of their `tokenizer.json`);
the names are those that GGUF files carry in `tokenizer.ggml.pre`.
"""

from __future__ import annotations

from dataclasses import dataclass

from ostinato.errors import UnsupportedModelError


@dataclass(frozen=True)
class PreTokenizer:
    """A rule: each pattern in turn cuts every piece that the one before has left.

    `whole_words` is true where a word that is itself a token is taken whole, whatever the merges would make
    of it. `add_bos` is what a file with this rule means when it does not say whether prompts begin with BOS.
    """

    patterns: tuple[str, ...]
    whole_words: bool = False
    add_bos: bool = False


_GPT2_WORD = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CL100K_WORD = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

_GPT2 = PreTokenizer((_GPT2_WORD,))
_SINGLE_DIGITS = PreTokenizer((r"\p{N}", _GPT2_WORD))
_QWEN2 = PreTokenizer((_CL100K_WORD % "",))
_LLAMA3 = PreTokenizer((_CL100K_WORD % "{1,3}",), whole_words=True, add_bos=True)

RULES = {
    "gpt-2": _GPT2,
    "phi-2": _GPT2,
    "mpt": _GPT2,
    "olmo": _GPT2,
    "smollm": _SINGLE_DIGITS,
    "starcoder": _SINGLE_DIGITS,
    "refact": _SINGLE_DIGITS,
    "command-r": _SINGLE_DIGITS,
    "codeshell": _SINGLE_DIGITS,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
}


def pretokenizer(name: str | None) -> PreTokenizer:
    """Return the rule of that name.

    Raises:
        UnsupportedModelError: no rule has that name, or the file names none. A wrong rule would degrade every
            answer without a sign, so none is guessed.
    """
    rule = RULES.get(name or "")
    if rule is not None:
        return rule
    known = ", ".join(RULES)
    said = "is missing" if name is None else f"is {name!r}, which is not built"
    raise UnsupportedModelError(f"tokenizer.ggml.pre {said} (built: {known})")
