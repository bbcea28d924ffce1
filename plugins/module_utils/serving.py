# Copyright: the modelarts.engine authors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""Runs an image as the platform would and talks to it over verified TLS."""

from __future__ import annotations

import http.client
import json
import re
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
from ansible_collections.modelarts.engine.plugins.module_utils import engine
from ansible_collections.modelarts.engine.plugins.module_utils.rehearsal import Rehearsal

SERVING = engine.LABEL + "serving"
PORT = "8080/tcp"
CA_PATH = "/home/ma-user/.serving/tls/ca.crt"
MODEL_PATH = "/home/mind/model"
# A tmpfs over a folder that exists takes that folder's mode but belongs to root, so the home's owner has to be said.
TMPFS = {"/tmp": "", "/run": "", "/home/ma-user": "uid=1000,gid=100,mode=0700"}  # noqa: S108


class ServingError(Exception):
    """The image does not serve; the message says what happened and ends with the container's last lines."""


def run_as_platform(
    client: docker.DockerClient,
    image: str,
    model: Path | str | None,
    *,
    port: int = 0,
    name: str | None = None,
    **more: Any,
) -> Any:
    """Starts the image with no more than the platform gives it, and returns the container.

    uid 1000, gid 100, read-only root with tmpfs on /tmp, /run and the home, 64 MB of /dev/shm, no capability, no new privileges; the
    model folder is mounted read-only. The port is published on loopback only.

    :param model: folder on the engine's host; None starts the image without one.
    :param port: of the engine's host; 0 takes a free one.
    :param more: options of the SDK's `run`, such as `command`; they replace what is said here.
    """
    options: dict[str, Any] = {
        "detach": True,
        "name": name,
        "user": "1000:100",
        "read_only": True,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges"],
        "tmpfs": TMPFS,
        "shm_size": "64m",
        "mounts": [docker.types.Mount(MODEL_PATH, str(model), type="bind", read_only=True)] if model else [],
        "ports": {PORT: ("127.0.0.1", port or None)},
        "labels": {SERVING: "true"},
    }
    return client.containers.run(image, **options | more)


def last_lines(container: Any, count: int = 15) -> str:
    """The container's last lines, both streams."""
    text: str = container.logs(tail=count).decode(errors="replace").strip()
    return text


def ca_certificate(container: Any) -> str | None:
    """The CA certificate the image made at start, PEM; None while it has none."""
    code, output = container.exec_run(["cat", CA_PATH])
    return output.decode() if code == 0 else None


class Service:
    """A running image, addressed as `https://localhost:<port>`.

    :param container: started by `run_as_platform`.
    """

    def __init__(self, container: Any) -> None:
        self.container = container
        self._ca = ""

    @property
    def port(self) -> int:
        """The published port on loopback."""
        self.container.reload()
        published = (self.container.attrs["NetworkSettings"]["Ports"] or {}).get(PORT)
        if not published:
            raise ServingError(
                f"the container does not run (state: {self.container.status}):\n{last_lines(self.container)}"
            )
        return int(published[0]["HostPort"])

    @property
    def ca(self) -> str:
        """The CA certificate that verifies the service, PEM."""
        self._ca = self._ca or ca_certificate(self.container) or ""
        return self._ca

    def request(self, method: str, path: str, body: Any = None, timeout: float = 60.0) -> http.client.HTTPResponse:
        """One request over TLS, verified against the image's own CA. The response is not read yet.

        :param body: anything JSON can hold, or None.
        :raises OSError: no connection, or the certificate does not verify.
        """
        context = ssl.create_default_context(cadata=self.ca)
        connection = http.client.HTTPSConnection("localhost", self.port, context=context, timeout=timeout)
        data = None if body is None else json.dumps(body).encode()
        connection.request(method, path, body=data, headers={"Content-Type": "application/json"} if data else {})
        return connection.getresponse()

    def wait(self, seconds: float) -> float:
        """Waits until `/health` answers 200; returns how long that took, in seconds.

        :raises ServingError: the container ended, or did not become healthy in time.
        """
        started = time.monotonic()
        seen = "no answer yet"
        while time.monotonic() - started < seconds:
            self.container.reload()
            if self.container.status in ("exited", "dead"):
                code = self.container.attrs["State"]["ExitCode"]
                raise ServingError(
                    f"the container ended with exit code {code} before it was healthy:\n{last_lines(self.container)}"
                )
            try:
                if self.ca:
                    response = self.request("GET", "/health", timeout=5.0)
                    seen = f"{response.status} {response.read(200).decode(errors='replace')}"
                    if response.status == http.client.OK:
                        return time.monotonic() - started
            except (OSError, http.client.HTTPException) as error:
                seen = str(error)
            time.sleep(0.1)
        raise ServingError(
            f"/health did not answer 200 within {seconds:.0f} s (last: {seen}):\n{last_lines(self.container)}"
        )

    def stop(self, seconds: int = 90) -> None:
        """Ends the container after what is in flight: nobody routes requests to it that it would have to wait for."""
        self.container.kill("SIGTERM")
        time.sleep(1)  # Signals are heard one by one; the second one, of `stop`, ends the drain.
        self.container.stop(timeout=seconds)

    def infer(self, rehearsal: Rehearsal, text: str, max_tokens: int = 64, expect: str = "") -> Any:
        """Sends the engine's request and returns what its answer is: text, or numbers in lists.

        :param expect: regular expression that the response's body must hold.
        :raises ServingError: the request was refused, or answered otherwise.
        """
        exchange = rehearsal.exchange
        response = self.request(exchange.method, exchange.path, exchange.filled(text, max_tokens))
        body = response.read().decode(errors="replace")
        if response.status != http.client.OK:
            raise ServingError(f"the model refused the request: {response.status} {body[:600]}")
        if not re.search(expect, body):
            raise ServingError(f"the model answered otherwise than expected ({expect}): {body[:600]}")
        return exchange.read(json.loads(body))

    def stream(self, rehearsal: Rehearsal, text: str, max_tokens: int = 64) -> Iterator[str]:
        """The answer piece by piece, as the engine sends it (server-sent events).

        :raises ValueError: the engine has no streams.
        :raises ServingError: the model refused or stopped.
        """
        exchange = rehearsal.stream
        if exchange is None:
            raise ValueError(f"{rehearsal.engine} answers in one piece; ask without --stream")
        response = self.request(exchange.method, exchange.path, exchange.filled(text, max_tokens))
        if response.status != http.client.OK:
            raise ServingError(
                f"the model refused the request: {response.status} {response.read(600).decode(errors='replace')}"
            )
        for line in response:
            if line.startswith(b"data:"):
                event = json.loads(line[5:])
                if "error" in event:
                    raise ServingError(f"the model stopped: {event['error']}")
                yield str(exchange.read(event))
