"""How text is cut into words before byte pairs are merged: a table from the name of a rule to the rule.

Knows the regular expressions and the defaults that come with a name. Must not know the vocabulary. To add a
rule is to add a line to `RULES`. Next on the request's path: `byte_bpe.py`.

The expressions are facts of the published tokenizers (the `pre_tokenizer` entries of their `tokenizer.json`);
the names are those that GGUF files carry in `tokenizer.ggml.pre`. Where llama.cpp approximates an expression
(the letter cases of `tekken` and `gpt-4o`, for other than ASCII), the published one is followed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ostinato.errors import InvalidRequestError, UnsupportedModelError


@dataclass(frozen=True)
class PreTokenizer:
    """A rule: each pattern in turn cuts every piece that the one before has left.

    `whole_words` is true where a word that is itself a token is taken whole, whatever the merges would make
    of it. `add_bos` is what a file with this rule means when it does not say whether prompts begin with BOS.
    """

    patterns: tuple[str, ...]
    whole_words: bool = False
    add_bos: bool = False


_CONTRACTION = r"'s|'t|'re|'ve|'m|'ll|'d"
_GPT2_WORD = _CONTRACTION + r"| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LINES_AND_BLANKS = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_CL100K_WORD = (
    rf"(?i:{_CONTRACTION})" + r"|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*" + _LINES_AND_BLANKS
)
_MARKED_WORD = (  # as above, with accents that are characters of their own counted among the letters
    rf"(?i:{_CONTRACTION})"
    r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*" + _LINES_AND_BLANKS
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def _cased_word(behind: str, digits: str) -> str:
    """Return the expression that cuts before a capital, as in `camelCase`; `behind` may follow a word."""
    first = r"[^\r\n\p{L}\p{N}]?"
    words = f"{first}{_UPPER}*{_LOWER}+{behind}|{first}{_UPPER}+{_LOWER}*{behind}"
    return rf"{words}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*" + _LINES_AND_BLANKS


_EAST_ASIAN = "[\u0800-\u9fa5\uac00-\ud7ff]+"
_SEED_WORD = (
    rf"(?i:{_CONTRACTION})|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+"
    + _LINES_AND_BLANKS
)

_GPT2 = PreTokenizer((_GPT2_WORD,))
_SINGLE_DIGITS = PreTokenizer((r"\p{N}", _GPT2_WORD))
_QWEN2 = PreTokenizer((_CL100K_WORD % r"\p{N}",))
_CL100K = PreTokenizer((_CL100K_WORD % r"\p{N}{1,3}",))
_LLAMA3 = replace(_CL100K, whole_words=True, add_bos=True)
_GPT4O = PreTokenizer((_cased_word(rf"(?i:{_CONTRACTION})?", r"\p{N}{1,3}"),))

RULES = {
    "gpt-2": _GPT2,
    "phi-2": _GPT2,
    "mpt": _GPT2,
    "olmo": _GPT2,
    "a.x-4.0": _GPT2,
    "mellum": _GPT2,
    "trillion": _GPT2,
    "granite-docling": _GPT2,
    "smollm": _SINGLE_DIGITS,
    "starcoder": _SINGLE_DIGITS,
    "refact": _SINGLE_DIGITS,
    "command-r": _SINGLE_DIGITS,
    "codeshell": _SINGLE_DIGITS,
    "minerva-7b": _SINGLE_DIGITS,
    "mellum2": _SINGLE_DIGITS,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "megrez": _QWEN2,
    "kormo": _QWEN2,
    "stablelm2": _QWEN2,
    "qwen35": PreTokenizer((_MARKED_WORD,)),
    "dbrx": _CL100K,
    "smaug-bpe": _CL100K,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "falcon3": _LLAMA3,
    "pixtral": _LLAMA3,
    "midm-2.0": _LLAMA3,
    "tekken": PreTokenizer((_cased_word("", r"\p{N}"),), whole_words=True, add_bos=True),
    "gpt-4o": _GPT4O,
    "llama4": _GPT4O,
    "kanana2": _GPT4O,
    "deepseek-coder": PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _EAST_ASIAN, r"\p{N}")),
    "seed-coder": PreTokenizer((_SEED_WORD,)),
    # what llama.cpp does where a file of this kind says so; it belongs to no published tokenizer
    "default": PreTokenizer((r"[\p{P}$+<=>^~|]+", _GPT2_WORD, r"\p{N}+", "[0-9]{3}")),
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
    said = "is missing" if name is None else f"is {name!r}, which is not built"
    raise UnsupportedModelError(
        f"tokenizer.ggml.pre {said}; if you know which rule the model was trained with, name it "
        f"(`--pre-tokenizer NAME`, `load(..., pre_tokenizer=NAME)`): {', '.join(RULES)}"
    )


def check_name(name: str) -> None:
    """Refuse a name that a caller chose and no rule has.

    Raises:
        InvalidRequestError: with the names that there are.
    """
    if name not in RULES:
        raise InvalidRequestError(
            f"pre_tokenizer is {name!r}; these are built: {', '.join(RULES)}", "pre_tokenizer"
        )
