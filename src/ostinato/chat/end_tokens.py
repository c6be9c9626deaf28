"""Which tokens end an answer: those the file names, those of the model families, and the chat template's.

Knows well-known token texts. Must not know how a token is sampled or an answer stopped: the engine is given
ids. Next on the request's path: `tokenizer.py`, which hands the set out.
"""

from __future__ import annotations

from ostinato.chat.token_finder import TokenFinder
from ostinato.chat.vocabulary import TokenType, Vocabulary
from ostinato.errors import TemplateError

_DEEPSEEK_END = "<\uff5cend\u2581of\u2581sentence\uff5c>"
END_MARKERS = frozenset(
    [
        *(
            "<|im_end|>",
            "<|eot_id|>",
            "<|eom_id|>",
            "<|eot|>",
            "<|eom|>",
            "<|end|>",
            "<|return|>",
            "<|call|>",
        ),
        *(
            "<|end_of_turn|>",
            "<|END_OF_TURN_TOKEN|>",
            "<end_of_turn>",
            "<end_of_utterance>",
            "<EOT>",
            "_<EOT>",
        ),
        *("[EOT]", "<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[EOS]", _DEEPSEEK_END),
        # of a file or a repository, where a model fills in the middle of one
        *("<|fim_pad|>", "<fim_pad>", "<fim-pad>", "<|file_sep|>", "<file_sep>"),
        *("<|fim_repo|>", "<fim-repo>", "<|repo_name|>", "<repo_name>", "<reponame>"),
    ]
)

# Models that answer in several channels end each of them, not the answer, with this token.
_CHANNEL_END = "<|end|>"
_ANSWER_ENDS = ("<|return|>", "<|call|>")


def parsed_ids(vocabulary: Vocabulary) -> dict[str, int]:
    """Return the tokens that stand for more than their text, and are read only where a template wrote them.

    They are the control tokens, and whatever has the text of an end marker: files give some of those another
    type.
    """
    control = vocabulary.ids_of(TokenType.CONTROL, TokenType.UNKNOWN)
    ids = {vocabulary.tokens[token_id]: token_id for token_id in control}
    return ids | {text: token_id for token_id, text in enumerate(vocabulary.tokens) if text in END_MARKERS}


def end_ids(vocabulary: Vocabulary) -> frozenset[int]:
    """Return every token that ends an answer."""
    parsed = TokenFinder(parsed_ids(vocabulary))
    control = vocabulary.ids_of(TokenType.CONTROL)
    ends = {token_id for token_id in control if vocabulary.tokens[token_id] in END_MARKERS}
    ends |= vocabulary.more_end_ids
    named = (vocabulary.eos_id, vocabulary.eot_id, vocabulary.eom_id, _end_of_turn(vocabulary, parsed))
    ends.update(token_id for token_id in named if token_id is not None)
    if all(parsed.get(text) is not None for text in _ANSWER_ENDS):
        ends -= {parsed.get(_CHANNEL_END)}
    return frozenset(ends)


def _end_of_turn(vocabulary: Vocabulary, parsed: TokenFinder) -> int | None:
    """Return the first token that the chat template writes behind what the assistant said."""
    if vocabulary.chat_template is None:
        return None
    from ostinato.chat.template import ChatTemplate  # and with it Jinja, which a base model never needs

    try:
        behind = ChatTemplate.of(vocabulary).behind_answer()
    except TemplateError:  # a broken template is reported where it is used; raw completion needs none
        return None
    return next((token_id for _, _, token_id in parsed.find(behind)), None)
