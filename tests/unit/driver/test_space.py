"""The search space as plain JSON."""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
from ray import tune

from raytrials.core.plain import plain
from raytrials.driver.space import REFERENCE, describe, difference, references_in


class Kind(enum.Enum):
    FAST = 1


@dataclasses.dataclass
class Layer:
    width: int
    rate: Any


class Opaque:
    """Says where it is."""


class Silent:
    def __repr__(self) -> str:
        raise RuntimeError("no text")


def draw(config: dict[str, Any]) -> float:
    return random.random()


def reference() -> Any:
    return ray.ObjectRef.nil()


TABLE: list[tuple[Any, Any]] = [
    (tune.uniform(0, 1), "uniform(0, 1)"),
    (tune.uniform(0.0, 1.0), "uniform(0, 1)"),
    (tune.quniform(0, 1, 0.25), "quniform(0, 1, 0.25)"),
    (tune.loguniform(1e-4, 0.1), "loguniform(0.0001, 0.1)"),
    (tune.qloguniform(1e-4, 1e-1, 1e-4), "qloguniform(0.0001, 0.1, 0.0001)"),
    (tune.randn(2, 0.5), "randn(2, 0.5)"),
    (tune.qrandn(2, 0.5, 0.1), "qrandn(2, 0.5, 0.1)"),
    (tune.randint(1, 9), "randint(1, 9)"),
    (tune.qrandint(0, 8, 2), "qrandint(0, 8, 2)"),
    (tune.lograndint(1, 100), "lograndint(1, 100)"),
    (tune.choice(["adam", 1, None]), 'choice(["adam", 1, null])'),
    (tune.choice([{"b": 1, "a": tune.uniform(0, 1)}]), 'choice([{"a": "uniform(0, 1)", "b": 1}])'),
    (tune.sample_from(draw), f"sample_from(<{__name__}.draw>)"),
    (tune.grid_search([1, tune.uniform(0, 1)]), {"grid_search": [1, "uniform(0, 1)"]}),
    ({"inner": {"x": (1, 2)}}, {"inner": {"x": [1, 2]}}),
    ({3, 1, 2}, [1, 2, 3]),
    (draw, f"<{__name__}.draw>"),
    (Layer, f"<{__name__}.Layer>"),
    (Layer(3, tune.uniform(0, 1)), {f"<{__name__}.Layer>": {"width": 3, "rate": "uniform(0, 1)"}}),
    (
        functools.partial(draw, 1, x=2),
        {"<partial>": [f"<{__name__}.draw>", 1], "x": 2},
    ),
    (Kind.FAST, f"<{__name__}.Kind.FAST>"),
    (Path("/data"), "/data"),
    (np.float64(0.5), 0.5),
    (np.arange(3), [0, 1, 2]),
    (Opaque(), f"<{__name__}.Opaque>"),
    (Silent(), f"<{__name__}.Silent>"),
    (reference(), REFERENCE),
    ([1, reference()], [1, REFERENCE]),
    (tune.choice([1, reference()]), f'choice([1, "{REFERENCE}"])'),
]


@pytest.mark.parametrize(("value", "described"), TABLE, ids=[str(one) for _, one in TABLE])
def test_a_value_is_described_as(value: Any, described: Any) -> None:
    found = describe({"key": value})
    assert found == {"key": described}
    assert json.loads(json.dumps(found)) == found == plain(found)
    assert difference(found, json.loads(json.dumps(found))) == []


def test_large_values_are_digests_that_tell_them_apart() -> None:
    large, other = np.zeros((100, 100)), np.zeros((100, 100))
    other[7, 7] = 1
    first, second = describe({"a": large})["a"], describe({"a": other})["a"]
    assert first.startswith("<numpy.ndarray float64 [100, 100] ")
    assert len(first) < 100
    assert first != second
    assert describe({"a": large.copy()})["a"] == first
    assert describe({"a": b"x" * 1000})["a"] != describe({"a": b"y" * 1000})["a"]


def test_no_search_space_is_an_empty_one() -> None:
    assert describe(None) == describe({}) == {}


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            {"lr": tune.loguniform(1e-4, 0.1)},
            {"lr": tune.loguniform(1e-3, 0.1)},
            ["lr: loguniform(0.0001, 0.1) became loguniform(0.001, 0.1)"],
        ),
        ({"y": 1}, {"x": 1}, ["removed: y", "added: x"]),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": 2, "c": 2}}, ["a.b: 1 became 2"]),
        ({"a": {"b": 1}}, {"a": 3}, ["removed: a.b", "added: a"]),
        ({"a": 1}, {"a": "1"}, ['a: 1 became "1"']),
        ({"a": 1}, {"a": True}, ["a: 1 became true"]),
        ({"a": float("nan")}, {"a": float("nan")}, []),
        (
            {"a": tune.grid_search([1, 2])},
            {"a": tune.grid_search([1, 2, 3])},
            ['a: {"grid_search": [1, 2]} became {"grid_search": [1, 2, 3]}'],
        ),
        ({"a": {}}, {}, ["removed: a"]),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, []),
        ({"a": reference()}, {"a": ray.ObjectRef(b"x" * 28)}, []),
        ({"a": tune.uniform(1, 5)}, {"a": tune.randint(1, 5)}, None),
    ],
)
def test_what_is_different_is_said_key_by_key(
    old: dict[str, Any], new: dict[str, Any], words: list[str] | None
) -> None:
    found = difference(describe(old), describe(new))
    assert found == (words if words is not None else ["a: uniform(1, 5) became randint(1, 5)"])


def test_references_are_found_wherever_they_are() -> None:
    space = {
        "data": {"train": reference(), "size": 3},
        "list": [1, {"deep": reference()}],
        "grid": tune.grid_search([reference(), 2]),
        "choice": tune.choice([{"x": reference()}]),
        "plain": "an object reference",
    }
    assert references_in(describe(space)) == ["data.train", "list", "grid", "choice"]


def test_a_dataset_is_a_reference() -> None:
    ray_data = pytest.importorskip("ray.data")

    class Dataset(ray_data.Dataset):  # type: ignore[misc]
        def __init__(self) -> None:
            """Hold nothing."""

        def __del__(self) -> None:
            """Let nothing go."""

    assert describe({"d": Dataset()}) == {"d": REFERENCE}


PROCESS = """
import json, sys
sys.path.insert(0, sys.argv[1])
import numpy as np
from ray import tune
from raytrials.driver.space import describe
class Thing: pass
print(json.dumps(describe({
    "set": {"b", "a", "c"}, "lambda": lambda: 1, "fn": tune.sample_from(lambda _: 2),
    "object": Thing(), "array": np.arange(99), "choice": tune.choice([Thing(), {"x", "y"}]),
})))
"""


def test_another_process_describes_it_the_same() -> None:
    said = {
        subprocess.run(
            [sys.executable, "-c", PROCESS, str(Path(__file__).parents[3])],
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in (1, 2)
    }
    assert len(said) == 1
    assert '"object": "<__main__.Thing>"' in said.pop()
