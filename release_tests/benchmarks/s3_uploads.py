"""What is uploaded to an object store, and what a stuck upload holds up, beside vanilla Ray Tune.

200 trials of three results, each with one checkpoint, under both in turns, with an S3 server on
loopback that counts requests. Printed are the objects put, the bytes uploaded and the trials/s, and
ours over vanilla's.

Then four trials report every 0.2 s while the store answers no upload for some seconds, but those of
checkpoints and of the journal. Printed is how much longer than usual no trial reported anything
meanwhile. The aim is none, a second at most; the exit code is 1 if ours misses it.
`--quick` is one small round, which only shows that the benchmark runs.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import multiprocessing
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from paired import Figures, in_own_process, in_turns, own_ray, print_ratios

BUCKET = "bucket"
STUCK_S = 20.0
REPORT_S = 0.2
HELD_UP_S = 1.0


class Counting:
    """A WSGI application before a store: it counts what is put, and holds up what it is told to."""

    def __init__(self, store: Callable[..., Any], counts: Path, stuck: Path) -> None:
        self._store = store
        self._counts = counts
        self._stuck = stuck
        self._lock = threading.Lock()
        self._objects = self._bytes = 0

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Any:
        """Answer a request."""
        if environ["REQUEST_METHOD"] in {"PUT", "POST"}:
            path = environ["PATH_INFO"]
            if "checkpoint_" not in path and "/.raytrials/" not in path:
                while self._stuck.exists():
                    time.sleep(0.05)
            # What is sent in chunks says how long it is without them.
            length = environ.get("HTTP_X_AMZ_DECODED_CONTENT_LENGTH") or environ.get(
                "CONTENT_LENGTH"
            )
            with self._lock:
                self._objects += environ["REQUEST_METHOD"] == "PUT"
                self._bytes += int(length or 0)
                self._counts.write_text(json.dumps([self._objects, self._bytes]))
        return self._store(environ, start_response)


def serve(directory: str, ports: Any) -> None:
    """Be the store, in a process of its own."""
    import logging  # noqa: PLC0415 - only there

    from moto.moto_server.werkzeug_app import (  # noqa: PLC0415
        DomainDispatcherApplication,
        create_backend_app,
    )
    from werkzeug.serving import make_server  # noqa: PLC0415

    logging.getLogger("werkzeug").setLevel("ERROR")
    store = DomainDispatcherApplication(create_backend_app)
    counting = Counting(store, Path(directory, "counts"), Path(directory, "stuck"))
    server = make_server("127.0.0.1", 0, counting, threaded=True)
    ports.put(server.server_port)
    server.serve_forever()


@contextlib.contextmanager
def store_at(directory: str) -> Iterator[str]:
    """Run the store; give the URL of a path in it."""
    from pyarrow import fs  # noqa: PLC0415

    context = multiprocessing.get_context("spawn")
    ports = context.Queue()
    process = context.Process(target=serve, args=(directory, ports))
    process.start()
    try:
        port = ports.get(timeout=60)
        options = {
            "scheme": "http",
            "endpoint_override": f"127.0.0.1:{port}",
            "region": "us-east-1",
        }
        filesystem = fs.S3FileSystem(
            access_key="testing", secret_key="testing", allow_bucket_creation=True, **options
        )
        filesystem.create_dir(BUCKET)
        yield f"s3://{BUCKET}?" + "&".join(f"{name}={value}" for name, value in options.items())
    finally:
        process.terminate()
        process.join()


def fit(side: str, url: str, trainable: Any, trials: int) -> float:
    """Run a fit; return its seconds."""
    from ray import tune  # noqa: PLC0415 - see own_ray

    from raytrials import Tuner  # noqa: PLC0415

    tuner = {"vanilla": tune.Tuner, "raytrials": Tuner}[side](
        trainable,
        param_space={"x": tune.grid_search(list(range(trials)))},
        tune_config=tune.TuneConfig(reuse_actors=True),
        run_config=tune.RunConfig(name="fit", storage_path=url, verbose=0),
    )
    start = time.perf_counter()
    grid = tuner.fit()
    if grid.num_errors or len(grid) != trials:
        raise RuntimeError(f"{grid.num_errors} of {len(grid)} trials failed: {grid.errors[:1]}")
    return time.perf_counter() - start


def trainable(results: int, log: str, report_s: float = 0.0) -> Any:
    """Return a class trainable that logs when it reports, and has a checkpoint at its end."""
    from ray import tune  # noqa: PLC0415 - see own_ray

    class Reporting(tune.Trainable):
        def setup(self, config: dict[str, Any]) -> None:
            self.count = 0

        def step(self) -> dict[str, Any]:
            time.sleep(report_s)
            self.count += 1
            with Path(log).open("a") as file:
                file.write(f"{time.time()}\n")
            return {"count": self.count, "done": self.count >= results}

        def reset_config(self, new_config: dict[str, Any]) -> bool:
            self.count = 0
            return True

        def save_checkpoint(self, checkpoint_dir: str) -> None:
            Path(checkpoint_dir, "count").write_text(str(self.count))

        def load_checkpoint(self, checkpoint_dir: str) -> None:
            self.count = int(Path(checkpoint_dir, "count").read_text())

    return Reporting


def uploads(side: str, trials: int) -> Figures:
    """Return what a fit of many short trials uploads."""
    with tempfile.TemporaryDirectory(prefix="rb") as place, store_at(place) as url:
        with own_ray(4):
            seconds = fit(side, url, trainable(3, f"{place}/log"), trials)
        objects, size = json.loads(Path(place, "counts").read_text())
    return {"objects": objects, "megabytes": size / 1e6, "trials_per_s": trials / seconds}


def held_up(side: str, stuck_s: float) -> Figures:
    """Return how long the trials stood still while uploads were stuck, beyond what is usual."""
    with tempfile.TemporaryDirectory(prefix="rb") as place, store_at(place) as url:
        log, stuck = Path(place, "log"), Path(place, "stuck")

        def count() -> int:
            return len(log.read_text().split()) if log.exists() else 0

        def hold() -> None:
            while count() < 4 * 5:
                time.sleep(0.1)
            begun.append(time.time())
            stuck.touch()
            time.sleep(stuck_s)
            stuck.unlink()

        begun: list[float] = []
        holder = threading.Thread(target=hold)
        holder.start()
        with own_ray(4):
            results = int(2 * stuck_s / REPORT_S)
            fit(side, url, trainable(results, str(log), REPORT_S), 4)
        holder.join()
        times = sorted(float(one) for one in log.read_text().split())
        within = [one for one in times if begun[0] <= one <= begun[0] + stuck_s]
        edges = [begun[0], *within, begun[0] + stuck_s]
        gaps = [after - before for before, after in itertools.pairwise(edges)]
    return {"held_up_s": max(0.0, max(gaps) - REPORT_S)}


def main() -> None:
    """Measure both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        what, side, amount = arguments.measure
        found = uploads(side, int(amount)) if what == "uploads" else held_up(side, float(amount))
        print(json.dumps(found))
        return
    credentials = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"}
    # Ray's own period is 10 s or more: what is stuck for less may not be waited for.
    environment = {"TUNE_GLOBAL_CHECKPOINT_S": "2"}

    def measure_uploads(side: str) -> Figures:
        return in_own_process(__file__, "--measure", "uploads", side, trials, **credentials)

    def measure_held_up(side: str) -> Figures:
        found = ("--measure", "held_up", side, stuck_s)
        return in_own_process(__file__, *found, **credentials, **environment)

    trials, rounds = (8, 1) if arguments.quick else (arguments.trials, arguments.rounds)
    stuck_s = 2.0 if arguments.quick else STUCK_S
    print(f"{trials} trials of 3 results and a checkpoint each, {rounds} rounds, medians")
    print_ratios(in_turns(measure_uploads, rounds))
    print(f"4 trials while uploads are stuck for {stuck_s:g} s, {rounds} rounds")
    seen = in_turns(measure_held_up, rounds)
    print_ratios(seen)
    worst = max(figures["held_up_s"] for figures in seen["raytrials"])
    sys.exit(0 if worst <= HELD_UP_S or arguments.quick else 1)


if __name__ == "__main__":
    main()
