"""What one request may ask of the sampler: every value, its default and its range, written once.

Knows numbers and ranges. Must not know logits, text or the wire, nor the limits that the engine owns
(`max_tokens`, `min_tokens`, `ignore_eos`, `stop_token_ids`, `stop`). Standard library only, so that the
command line can derive its options from these fields at once. Next on the path: `sampler.py`. Semantics and
order: docs/sampling.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any

from ostinato.errors import InvalidRequestError

MAX_COUNT = 2**31 - 1
MAX_SEED = 2**64 - 1
MAX_BIAS = 100.0


def _ranged(default: float | None, low: float, high: float, meaning: str) -> Any:
    """Return a dataclass field whose metadata carries its range (both ends included) and its help text."""
    return field(default=default, metadata={"low": low, "high": high, "help": meaning})


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to choose a token from logits. The defaults are the model's own distribution, unfiltered.

    Each field's metadata holds `help` and, for a number, `low` and `high` (both included). Numbers are stored
    as the type in the annotation; `logit_bias` is copied.

    Raises:
        InvalidRequestError: a value has the wrong type (a bool is not a number) or lies outside its range, as
            NaN does; `param` is the field's name.
    """

    temperature: float = _ranged(
        1.0, 0.0, 100.0, "above 1 flattens the choice, below 1 sharpens it; 0: greedy"
    )
    top_k: int = _ranged(0, -1, MAX_COUNT, "keep the k most likely tokens; 0 or -1: off")
    top_p: float = _ranged(
        1.0, 0.0, 1.0, "keep the fewest most likely tokens that reach this probability; 1: off"
    )
    min_p: float = _ranged(
        0.0, 0.0, 1.0, "drop tokens below this share of the likeliest one's probability; 0: off"
    )
    repetition_penalty: float = _ranged(1.0, 0.01, 100.0, "damp tokens of the prompt and the output; 1: off")
    repetition_window: int = _ranged(-1, -1, MAX_COUNT, "newest tokens that it looks at; -1: all; 0: off")
    presence_penalty: float = _ranged(0.0, -2.0, 2.0, "damp tokens of the output, once each; 0: off")
    frequency_penalty: float = _ranged(0.0, -2.0, 2.0, "damp tokens of the output, by their count; 0: off")
    logit_bias: Mapping[int, float] = field(
        default_factory=dict,
        hash=False,
        metadata={"help": "number to add to the logit of a token id"},
    )
    seed: int | None = _ranged(
        None, 0, MAX_SEED, "same seed, same tokens; absent: a fresh seed for each request"
    )

    def __post_init__(self) -> None:
        for knob in fields(self):
            value = getattr(self, knob.name)
            if knob.name == "logit_bias":
                object.__setattr__(self, knob.name, _checked_bias(value))
            elif value is not None or knob.default is not None:
                object.__setattr__(self, knob.name, _checked_number(knob, value))

    def validate_for(self, vocab_size: int) -> None:
        """Check what depends on the model: every id of `logit_bias` must lie in [0, vocab_size).

        Raises:
            InvalidRequestError: naming the id; `param` is "logit_bias".
        """
        for token_id in self.logit_bias:
            if not 0 <= token_id < vocab_size:
                raise _bias_error(f"names token {_shown(token_id)}", f"token ids from 0 to {vocab_size - 1}")

    def changed(self) -> dict[str, Any]:
        """Return the fields that are not at their default: what departs from the model's own distribution."""
        neutral = SamplingParams()
        values = {knob.name: getattr(self, knob.name) for knob in fields(self)}
        return {name: value for name, value in values.items() if value != getattr(neutral, name)}

    @property
    def is_greedy(self) -> bool:
        """True where one token is kept whatever the logits: the most likely, the lowest id of equals."""
        return self.temperature == 0 or self.top_k == 1 or self.top_p == 0

    @property
    def penalizes_repetition(self) -> bool:
        """True where the repetition penalty can change a logit."""
        return self.repetition_penalty != 1 and self.repetition_window != 0

    @property
    def penalizes_output(self) -> bool:
        """True where the presence or the frequency penalty can change a logit."""
        return self.presence_penalty != 0 or self.frequency_penalty != 0


def _checked_number(knob: Field[Any], value: object) -> float:
    """Return `value` as the field's type, or raise with its name, the value and the allowed range."""
    low, high = knob.metadata["low"], knob.metadata["high"]
    is_whole = isinstance(low, int)
    allowed_types = int if is_whole else (int, float)
    if isinstance(value, allowed_types) and not isinstance(value, bool) and low <= value <= high:
        return value if is_whole else float(value)
    kind = "an integer" if is_whole else "a number"
    raise InvalidRequestError(
        f"{knob.name} is {_shown(value)}; allowed: {kind} from {_limit(low)} to {_limit(high)}",
        param=knob.name,
    )


def _checked_bias(bias: object) -> dict[int, float]:
    """Return a copy of the mapping with float values, or raise with the entry that is not allowed."""
    if not isinstance(bias, Mapping):
        raise _bias_error(f"is {_shown(bias)}", "a mapping of token ids to numbers")
    checked = {}
    for token_id, value in bias.items():
        if not isinstance(token_id, int) or isinstance(token_id, bool) or token_id < 0:
            raise _bias_error(f"has the key {_shown(token_id)}", "token ids, integers from 0")
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not (is_number and -MAX_BIAS <= value <= MAX_BIAS):
            raise _bias_error(
                f"of token {_shown(token_id)} is {_shown(value)}",
                f"a number from {-MAX_BIAS:g} to {MAX_BIAS:g}",
            )
        checked[token_id] = float(value)
    return checked


def _bias_error(found: str, allowed: str) -> InvalidRequestError:
    return InvalidRequestError(f"logit_bias {found}; allowed: {allowed}", param="logit_bias")


def _limit(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:g}"


def _shown(value: object) -> str:
    """Return `value` for an error message: one short line, whatever it is."""
    if isinstance(value, int) and value.bit_length() > 128:
        return f"an integer of {value.bit_length()} bits"
    if value is None or isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str):
        return repr(value if len(value) <= 40 else value[:37] + "...")
    return f"of type {type(value).__name__}"
