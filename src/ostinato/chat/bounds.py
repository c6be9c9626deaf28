"""What one rendering of a chat template may use: time, and the size of what it builds.

Knows numbers only. A template comes with a model file, so it is foreign code: it must end, and soon, whatever
it says. Next on the request's path: `provenance.py`.
"""

from __future__ import annotations

from collections.abc import Sized
from time import thread_time

MAX_CPU_S = 0.5
MAX_CPU_S_PER_MESSAGE = 0.001  # a message takes about a twentieth of it
MAX_CHARS = 1 << 26
MAX_ITEMS = 1 << 20
MAX_BITS = 4096  # of a number
_STEPS_PER_LOOK = 256
_PER_STEP = {False: 16, True: 1024}  # items of a list, characters of a text


class Budget:
    """The processor time that a rendering may still take, in the thread that makes the budget.

    It is processor time, so that a busy machine refuses nothing that an idle one renders. The clock is looked
    at once in a while, as counted by steps of very roughly a microsecond.
    """

    def __init__(self, num_messages: int) -> None:
        self._cpu_s = MAX_CPU_S + MAX_CPU_S_PER_MESSAGE * num_messages
        self._end_s = thread_time() + self._cpu_s
        self._steps_to_look = _STEPS_PER_LOOK

    def spend(self, steps: int = 1) -> None:
        """Count steps.

        Raises:
            OverflowError: the rendering has taken more time than it may.
        """
        self._steps_to_look -= steps
        if self._steps_to_look < 0:
            self._steps_to_look = _STEPS_PER_LOOK
            if thread_time() > self._end_s:
                raise OverflowError(f"the rendering takes more than {self._cpu_s:.1f} s")

    def spend_on(self, value: object) -> None:
        """Count the steps of a filter that goes through the value."""
        steps = len(value) // _PER_STEP[isinstance(value, str)] if isinstance(value, Sized) else 0
        self.spend(1 + steps)


def check_len(num_chars: int) -> None:
    """Refuse a text that only a runaway template can want.

    Raises:
        OverflowError: it would be longer than `MAX_CHARS`.
    """
    if num_chars > MAX_CHARS:
        raise OverflowError(f"a text of {num_chars} characters is too long (at most {MAX_CHARS})")


def check_growth(operator: str, left: object, right: object) -> None:
    """Refuse `+`, `*` and `**` where the result would be out of all proportion.

    Raises:
        OverflowError: the result would be longer than `MAX_CHARS` or `MAX_ITEMS`, or a number of more than
            `MAX_BITS`.
    """
    if isinstance(left, int) and isinstance(right, int):
        _check_number(operator, left, right)
    elif operator == "+" and isinstance(left, Sized) and isinstance(right, Sized):
        _check_size(left, len(left) + len(right))
    elif operator == "*":
        for value, times in ((left, right), (right, left)):
            if isinstance(value, Sized) and isinstance(times, int):
                _check_size(value, len(value) * times)


def _check_number(operator: str, left: int, right: int) -> None:
    bits = left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length()
    if bits > MAX_BITS:
        raise OverflowError(f"a number of {bits} bits is too large (at most {MAX_BITS})")


def _check_size(value: Sized, size: int) -> None:
    if isinstance(value, str):
        check_len(size)
    elif size > MAX_ITEMS:
        raise OverflowError(f"a list of {size} items is too long (at most {MAX_ITEMS})")
