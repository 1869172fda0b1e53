"""A search that the same command starts and continues."""

import json
import os
import tempfile
import time
from pathlib import Path

from ray import tune

from raytrials import Tuner


def train(config):
    step, checkpoint = 0, tune.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as directory:
            step = json.loads(Path(directory, "step").read_text())
    while step < 6:
        time.sleep(0.3)  # your training
        step += 1
        with tempfile.TemporaryDirectory() as directory:
            Path(directory, "step").write_text(json.dumps(step))
            saved = tune.Checkpoint.from_directory(directory)
            tune.report({"score": config["x"] * step}, checkpoint=saved)


results = Tuner(
    train,
    param_space={"x": tune.grid_search([1, 2, 3, 4])},
    run_config=tune.RunConfig(name="search", storage_path=os.environ["RESULTS"]),
    resume="auto",
).fit()
print(results.get_best_result("score", "max").config)
