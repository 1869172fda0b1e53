"""The job that the demo tunes: a small network on the digits that ship with scikit-learn.

Written as a user would write it, with public names of Ray alone.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import tempfile
from pathlib import Path
from typing import Any

import ray
from ray import tune
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

SEED = 7
METRIC = "validation_accuracy"
SPACE = {
    "learning_rate": tune.loguniform(1e-4, 1e-1),
    "alpha": tune.loguniform(1e-6, 1e-1),
    "hidden_units": tune.choice([16, 32, 64, 128]),
    "batch_size": tune.choice([16, 32, 64, 128]),
}


def train(config: dict[str, Any]) -> None:
    """Train one network, with a report and a checkpoint after each epoch.

    Args:
        config: the names in `SPACE`, `epochs`, and `scratch`, the directory of :class:`Scratch`.
    """
    scratch = Scratch(config["scratch"])
    trial_id = tune.get_context().get_trial_id()
    node_id = ray.get_runtime_context().get_node_id()
    data = load_data()
    model = MLPClassifier(
        hidden_layer_sizes=(config["hidden_units"],),
        learning_rate_init=config["learning_rate"],
        alpha=config["alpha"],
        batch_size=config["batch_size"],
        random_state=SEED,
    )
    epochs_done = 0
    checkpoint = tune.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as directory:
            if scratch.take_restore_kill(trial_id):
                os.kill(os.getpid(), signal.SIGKILL)
            epochs_done, model = read_model(directory)
    for epoch in range(epochs_done + 1, config["epochs"] + 1):
        scratch.note_epoch(trial_id, epoch)
        model.partial_fit(*data["train"], classes=range(10))
        accuracy = model.score(*data["validation"])
        with tempfile.TemporaryDirectory(dir=scratch.staging) as directory:
            write_model(directory, epoch, model)
            tune.report(
                {"epoch": epoch, METRIC: accuracy, "node": node_id},
                checkpoint=tune.Checkpoint.from_directory(directory),
            )


def load_data() -> dict[str, tuple[Any, Any]]:
    """Return images (n x 64 grey values from 0 to 1) and labels (n digits), always split alike.

    The search sees `train` (1,077) and `validation` (360); `test` (360) is for the winner alone.
    """
    images, labels = load_digits(return_X_y=True)
    images, test_images, labels, test_labels = train_test_split(
        images / 16, labels, test_size=360, stratify=labels, random_state=SEED
    )
    images, validation_images, labels, validation_labels = train_test_split(
        images, labels, test_size=360, stratify=labels, random_state=SEED
    )
    return {
        "train": (images, labels),
        "validation": (validation_images, validation_labels),
        "test": (test_images, test_labels),
    }


def write_model(directory: str, epoch: int, model: MLPClassifier) -> None:
    """Write a checkpoint: the epochs done and the model with the state of its optimizer."""
    Path(directory, "model.pickle").write_bytes(pickle.dumps((epoch, model)))


def read_model(directory: str) -> tuple[int, MLPClassifier]:
    """Read what :func:`write_model` wrote."""
    data = Path(directory, "model.pickle").read_bytes()
    epoch, model = pickle.loads(data)  # noqa: S301 - written by ourselves
    return epoch, model


class Scratch:
    """A directory in which workers leave notes that outlive them.

    It lasts as long as the run that made it. Without it (the experiment was restored later, or the
    worker is on another machine) nothing is noted and nothing is planned.

    Args:
        directory: the directory.
    """

    def __init__(self, directory: str) -> None:
        self._directory = Path(directory)

    @property
    def staging(self) -> Path | None:
        """Where to write what a killed worker may leave behind; None once the directory is gone."""
        return self._directory if self._directory.is_dir() else None

    def note_epoch(self, trial_id: str, epoch: int) -> None:
        """Note that an epoch begins."""
        with contextlib.suppress(FileNotFoundError), self._epochs(trial_id).open("a") as notes:
            notes.write(f"{epoch}\n")

    def read_epochs(self, trial_id: str) -> list[str]:
        """Return the epochs of a trial as they began."""
        notes = self._epochs(trial_id)
        return notes.read_text().split() if notes.exists() else []

    def plan_restore_kill(self, trial_id: str) -> None:
        """Let the trial's next worker kill itself while it loads its checkpoint."""
        self._restore_kill(trial_id).touch()

    def take_restore_kill(self, trial_id: str) -> bool:
        """Return whether such a kill is planned, and withdraw it."""
        try:
            self._restore_kill(trial_id).unlink()
        except FileNotFoundError:
            return False
        return True

    def _epochs(self, trial_id: str) -> Path:
        return self._directory / f"{trial_id}.epochs"

    def _restore_kill(self, trial_id: str) -> Path:
        return self._directory / f"{trial_id}.restore-kill"
