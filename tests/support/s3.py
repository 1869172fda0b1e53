"""An S3 server on this machine, the ways to it, and a driver that saves there by all of them.

`python -c "from support.s3 import main; main()" <workspace> <port> <fit|restore>` is that driver.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import s3fs
from pyarrow import fs
from ray import tune

from raytrials import RetryPolicy, Tuner
from support.session import local_ray
from support.telling import saving

BUCKET = "bucket"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"}
WAYS = ("pyarrow", "s3fs", "uri")


@contextlib.contextmanager
def s3_server() -> Iterator[int]:
    """Run a server with one empty bucket; give its port."""
    from moto.server import ThreadedMotoServer  # noqa: PLC0415 - two seconds, for two modules

    logging.getLogger("werkzeug").setLevel("ERROR")
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        port = server.get_host_and_port()[1]
        filesystem(port, allow_bucket_creation=True).create_dir(BUCKET)
        yield port
    finally:
        server.stop()


@contextlib.contextmanager
def gate(port: int, key_file: Path) -> Iterator[int]:  # noqa: C901 - one class inside
    """Run a server before another that rejects every key but that in a file; give its port."""

    class Gate(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            chunked = self.headers.get("Transfer-Encoding") == "chunked"
            body = self.chunks() if chunked else self.plain()
            if f"Credential={key_file.read_text()}/" not in self.headers.get("Authorization", ""):
                self.reply(403, {"Content-Type": "application/xml"}, EXPIRED)
                return
            upstream = http.client.HTTPConnection("127.0.0.1", port)
            try:
                headers = dict(self.headers)
                given: Any = iter([body]) if chunked else body
                upstream.request(self.command, self.path, given, headers, encode_chunked=chunked)
                response = upstream.getresponse()
                self.reply(response.status, dict(response.getheaders()), response.read())
            finally:
                upstream.close()

        def plain(self) -> bytes:
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))

        def chunks(self) -> bytes:
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            while self.rfile.readline().strip():
                pass  # trailers
            return body

        def reply(self, status: int, headers: dict[str, str], body: bytes) -> None:
            self.send_response(status)
            for name, value in headers.items():
                if name.lower() not in {"connection", "transfer-encoding", "content-length"}:
                    self.send_header(name, value)
            length = headers.get("Content-Length") if self.command == "HEAD" else None
            self.send_header("Content-Length", length or str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = answer  # noqa: N815 - as they are named

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name
            """Be silent."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Gate)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


EXPIRED = b"""<?xml version="1.0" encoding="UTF-8"?>
<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>"""


def filesystem(port: int, key: str = "testing", **settings: Any) -> fs.S3FileSystem:
    """Return the server as pyarrow sees it."""
    return fs.S3FileSystem(
        access_key=key,
        secret_key="testing",
        endpoint_override=f"127.0.0.1:{port}",
        scheme="http",
        region="us-east-1",
        **settings,
    )


def place(way: str, port: int, path: str) -> tuple[str, Any]:
    """Return a path on the store, and the filesystem to hand over with it."""
    if way == "pyarrow":
        return path, filesystem(port)
    if way == "s3fs":
        url = f"http://127.0.0.1:{port}"
        return path, s3fs.S3FileSystem(key="testing", secret="testing", endpoint_url=url)
    query = f"scheme=http&endpoint_override=127.0.0.1:{port}&region=us-east-1"
    return f"s3://{path}?{query}", None


def main() -> None:
    """Fit or restore one experiment for each way, all at once, and print what came out."""
    workspace, port, stage = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]

    def run(way: str) -> Any:
        grid = (fit if stage == "fit" else restore)(workspace, port, way)
        (result,) = grid
        return {
            "count": result.metrics["count"],
            "error": repr(result.error),
            "causes": [fault.cause for fault in result.faults],
            "charges": [fault.charge for fault in result.faults],
        }

    with local_ray(num_cpus=2), ThreadPoolExecutor(len(WAYS)) as pool:
        print(json.dumps(dict(zip(WAYS, pool.map(run, WAYS), strict=True))))  # noqa: T201


POLICY = RetryPolicy(backoff_initial_s=0, count_worker_death=False)


def fit(workspace: Path, port: int, way: str) -> tune.ResultGrid:
    """Run six steps: the worker is killed in the upload of the third, and holds after the fourth.

    Returns:
        Nothing unless a file `go` is in the workspace.
    """
    path, filesystem = place(way, port, BUCKET)
    return Tuner(
        tune.with_resources(saving, {"cpu": 0.5}),
        param_space={"log": str(workspace / way), "steps": 6, "dies_in": 3, "holds_at": 4},
        run_config=tune.RunConfig(
            name=way,
            storage_path=path,
            storage_filesystem=filesystem,
            verbose=0,
            checkpoint_config=tune.CheckpointConfig(num_to_keep=2),
        ),
        retry_policy=POLICY,
    ).fit()


def restore(workspace: Path, port: int, way: str) -> tune.ResultGrid:
    """Go on with what :func:`fit` has left."""
    path, filesystem = place(way, port, f"{BUCKET}/{way}")
    trainable = tune.with_resources(saving, {"cpu": 0.5})
    return Tuner.restore(path, trainable, storage_filesystem=filesystem, retry_policy=POLICY).fit()
