"""The comparison with other engines: whose turn it is, which samples count, and what is shown of them."""

from __future__ import annotations

import sys
from argparse import Namespace
from dataclasses import dataclass, field
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import peers

Call = tuple[str, int, int]


@dataclass
class Scripted:
    """A worker that notes when it is called, and is faster each time."""

    engine: str
    names: tuple[str, ...]
    calls: list[Call]
    vocab_size: int | None = None
    prompts: list[list[int]] = field(default_factory=list)

    def measure(self, ids: list[int], new_tokens: int) -> dict[str, float]:
        self.calls.append((self.engine, len(ids), new_tokens))
        self.prompts.append(ids)
        return {name: 100.0 * len(self.prompts) + index for index, name in enumerate(self.names)}


def test_what_is_asked_for() -> None:
    arguments = Namespace(prefill=[512, 2048], depth=[0, 4096], new_tokens=128)
    assert [(work.prompt, work.new_tokens) for work in peers.works(arguments)] == [
        (512, 0),
        (2048, 0),
        (16, 128),
        (4096, 128),
    ]


def test_turns() -> None:
    """All engines in each round, another one first each time; the first round does not count."""
    calls = list[Call]()
    one = Scripted("ostinato", ("ostinato",), calls, 50)
    other = Scripted("llama.cpp", ("llama.cpp", "llama.cpp, fast"), calls, 49)
    samples = peers.measure_in_turns([one, other], [peers.Work("read", 9), peers.Work("write", 5, 3)], 2)
    first_second, second_first = ["ostinato", "llama.cpp"], ["llama.cpp", "ostinato"]
    assert [name for name, *_ in calls] == [*first_second, *second_first, *first_second] * 2
    assert [call[1:] for call in calls] == [(9, 0)] * 6 + [(5, 3)] * 6
    assert samples["read"] == {"ostinato": [200, 300], "llama.cpp": [200, 300], "llama.cpp, fast": [201, 301]}
    assert one.prompts == other.prompts
    assert (
        len({tuple(ids) for ids in one.prompts[:3]}) == 3
        and len({tuple(ids) for ids in one.prompts[3:]}) == 1
    )
    assert max(max(ids) for ids in one.prompts) < 49


def test_ratios_are_to_the_better_setting() -> None:
    rates = {
        "ostinato": [30.0, 20.0, 10.0],
        "llama.cpp": [5.0],
        "llama.cpp, flash": [8.0],
        "OpenVINO": [40.0],
    }
    assert peers.ratios(rates, ["llama.cpp", "openvino"]) == {"llama.cpp": 2.5, "openvino": 0.5}
    assert peers.ratios({"ostinato": [1.0]}, ["openvino"]) == {}
    shown = peers.table({"work": rates}, ["llama.cpp"])
    assert "ostinato" in shown.splitlines()[1] and "20.0 tok/s   (10.0 to 30.0)" in shown
    assert shown.splitlines()[-1].split() == ["ratio", "to", "llama.cpp", "at", "its", "best", "2.50"]


def test_nothing_to_measure(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["peers.py", "--prefill", "--depth"])
    with pytest.raises(SystemExit):
        peers.main()
    assert "nothing to measure" in capsys.readouterr().err
