#!/usr/bin/env python3
"""Measures an image beside its engine alone and beside the plain proxy settings people start from.

All variants serve from one engine process, are asked over loopback inside its network namespace (hence: root), and take turns in
rounds; figures are medians over rounds. Writes table.md, results.json and, with matplotlib, plot.png to build/bench/.
"""

import argparse
import contextlib
import ctypes
import http.client
import itertools
import json
import os
import re
import resource
import shutil
import signal
import ssl
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from bench import report  # noqa: E402
from modelarts_engine.engine_client import DEFAULT_URL, engine, find_image, serving  # noqa: E402

OUT = HERE.parent / "build/bench"
PORTS = {"direct": 8000, "ours": 8080, "plain": 8443, "bare": 8444, "ours, no TLS": 8081}
TLS = ("ours", "plain", "bare")
SIZES = {"tiny": 1, "4 MB": 4 << 20}
TICK = os.sysconf("SC_CLK_TCK")
CHUNKS = 20
TINY = '{"inputs":[{"name":"x","shape":[1],"datatype":"UINT8","data":[7]}]}'
PROXY = """printf %s "$CONF" >/tmp/$NAME.conf
[ -e /tmp/tls.crt ] || openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=plain -keyout /tmp/tls.key -out /tmp/tls.crt 2>/dev/null
exec nginx -e stderr -c /tmp/$NAME.conf -g "daemon off; pid /tmp/$NAME.pid;" >/proc/1/fd/1 2>/proc/1/fd/2
"""
libc = ctypes.CDLL(None, use_errno=True)
Result = dict[str, Any]


@contextlib.contextmanager
def inside(pid: int) -> Iterator[None]:
    """This thread, and what it starts, in the network of process `pid`."""
    with Path("/proc/thread-self/ns/net").open() as own, Path(f"/proc/{pid}/ns/net").open() as other:
        if libc.setns(other.fileno(), 0):
            raise OSError(ctypes.get_errno(), "cannot enter the container's network, which needs root")
        try:
            yield
        finally:
            libc.setns(own.fileno(), 0)


def part_of(variant: str) -> str:
    """The name under which `processes` finds a variant's proxy."""
    return "proxy" if variant == "ours" else re.sub(r"\W+", "_", variant)


def first_pid(container: Any) -> int:
    container.reload()
    if not (pid := container.attrs["State"]["Pid"]):
        raise serving.ServingError(f"a container has ended:\n{serving.last_lines(container)}")
    return int(pid)


def processes(container: Any) -> dict[str, list[int]]:
    """Process ids, as this host counts, by part: the image's proxy, another proxy by its name, engine, rest."""
    found: dict[str, list[int]] = {"proxy": [], "engine": [], "rest": []}
    masters: dict[int, str] = {}
    for line in container.top(ps_args="-eo pid,ppid,args")["Processes"]:
        pid, parent, command = int(line[0]), int(line[1]), line[2]
        if command.startswith("nginx: master"):
            other = re.search(r" -c /tmp/(\w+)\.conf", command)
            masters[pid] = other[1] if other else "proxy"
        part = masters.get(pid) or masters.get(parent)
        engine_ = re.match(r"\S*triton", command)
        found.setdefault(part or ("engine" if engine_ else "rest"), []).append(pid)
    return found


def stat(pid: int) -> list[str]:
    """The fields of proc(5)'s stat that follow the name."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def seconds(pids: list[int]) -> tuple[float, float]:
    """User and system seconds so far; of a process that has ended (another's container engine), none."""
    found = [stat(pid) for pid in pids if Path(f"/proc/{pid}").exists()]
    return sum(int(each[11]) for each in found) / TICK, sum(int(each[12]) for each in found) / TICK


def memory(pids: list[int]) -> dict[str, float]:
    """MB resident, with pages that processes share counted once (pss) and once for each (rss)."""
    texts = [path.read_text() for pid in pids if (path := Path(f"/proc/{pid}/smaps_rollup")).exists()]
    return {
        kind: sum(int(re.findall(rf"(?im)^{kind}: *(\d+)", text)[0]) for text in texts) / 1024
        for kind in ("pss", "rss")
    }


def connect(variant: str) -> http.client.HTTPConnection:
    """A connection; whose certificate it is, is the contract suite's business."""
    if variant not in TLS:
        return http.client.HTTPConnection("127.0.0.1", PORTS[variant], timeout=60)
    context = ssl._create_unverified_context()  # noqa: S323
    return http.client.HTTPSConnection("127.0.0.1", PORTS[variant], timeout=60, context=context)


def load(variant: str, size: int, connections: int, duration: int, parts: dict[str, list[int]]) -> Result:
    """One wrk run: requests/s, p50 and p99 in ms, and each part's CPU microseconds per request, user and system."""
    before = {part: seconds(pids) for part, pids in parts.items()}
    mine = resource.getrusage(resource.RUSAGE_CHILDREN)
    url = f"http{'s' * (variant in TLS)}://127.0.0.1:{PORTS[variant]}/v2/models/identity/infer"
    command = ["wrk", f"-t{min(2, connections)}", f"-c{connections}", f"-d{duration}s", "--timeout=30s", "-s"]
    environment = {**os.environ, "BENCH_BYTES": str(size)}
    run = subprocess.run([*command, HERE / "wrk.lua", url], env=environment, capture_output=True, text=True, check=True)
    result: Result = json.loads(run.stdout.strip().splitlines()[-1])
    used = {part: [b - a for a, b in zip(before[part], seconds(pids), strict=True)] for part, pids in parts.items()}
    now = resource.getrusage(resource.RUSAGE_CHILDREN)
    used["client"] = [now.ru_utime - mine.ru_utime, now.ru_stime - mine.ru_stime]
    count = max(result["requests"], 1)
    result["rate"] = count / result["seconds"]
    result["cpu"] = {part: [1e6 * each / count for each in value] for part, value in used.items()}
    # What wrk left behind is worked off in order: with this answered, the next measurement begins with an idle engine.
    connection = connect("direct")
    connection.request("POST", "/v2/models/identity/infer", TINY)
    connection.getresponse().read()
    return result


def stream(variant: str, count: int) -> Result:
    """Milliseconds to the first chunk, and between chunks, of `count` streams, each over a connection opened before."""
    first, gaps = [], []
    for _ in range(count):
        connection = connect(variant)
        connection.connect()
        began = time.perf_counter()
        connection.request("POST", "/v2/models/stream/generate_stream", json.dumps({"x": CHUNKS}))
        times = [time.perf_counter() for line in connection.getresponse() if line.startswith(b"data:")]
        connection.close()
        if len(times) != CHUNKS:
            raise serving.ServingError(f"{variant}: {len(times)} chunks of {CHUNKS}")
        first.append(1e3 * (times[0] - began))
        gaps += [1e3 * (b - a) for a, b in itertools.pairwise(times)]
    cuts = statistics.quantiles(gaps, n=100)
    return {"first": statistics.median(first), "gap50": cuts[49], "gap99": cuts[98]}


def handshakes(variant: str, duration: int) -> float:
    """New TLS handshakes per second, two clients at once, none resumed."""
    command = ["openssl", "s_time", "-connect", f"127.0.0.1:{PORTS[variant]}", "-new", "-time", str(duration)]
    began = time.perf_counter()
    pipe, null = subprocess.PIPE, subprocess.DEVNULL
    clients = [subprocess.Popen(command, stdout=pipe, stderr=null, text=True) for _ in range(2)]
    outputs = [client.communicate()[0] for client in clients]
    took = time.perf_counter() - began
    return sum(int(re.findall(r"(\d+) connections in \d+ real", output)[0]) for output in outputs) / took


def until(pid: int, variant: str, path: str = "/v2/health/ready") -> float:
    """Seconds from the start of process `pid` until the first 200."""
    began = int(stat(pid)[19]) / TICK
    while (now := time.clock_gettime(time.CLOCK_BOOTTIME) - began) < 60:
        connection = connect(variant)
        with contextlib.suppress(OSError, http.client.HTTPException), contextlib.closing(connection):
            connection.request("GET", path)
            if connection.getresponse().status == http.client.OK:
                return time.clock_gettime(time.CLOCK_BOOTTIME) - began
        time.sleep(0.01)
    raise serving.ServingError(f"{variant} did not answer 200 to {path} within {now:.0f} s")


class Bench:
    """Containers of one image, and what is measured on them."""

    def __init__(self, image: str) -> None:
        self.client = engine.connect(DEFAULT_URL)
        self.image = find_image(self.client, image)
        self.found: Result = {"load": {}, "stream": {}, "handshakes": {}, "start": {}}
        self.found["machine"] = (
            f"{os.cpu_count()} cores for client, proxy and engine; load average before the run {os.getloadavg()[0]:.1f}"
        )
        self.began = time.monotonic()

    def start(self, stack: contextlib.ExitStack, **more: Any) -> tuple[Any, int]:
        container = serving.run_as_platform(self.client, self.image, HERE / "models", **more)
        stack.callback(container.remove, force=True, v=True)
        return container, first_pid(container)

    def add(self, kind: str, key: str, value: Any) -> None:
        self.found[kind].setdefault(key, []).append(value)
        print(f"{time.monotonic() - self.began:5.0f} s  {kind}: {key}", file=sys.stderr)

    def starts(self) -> None:
        """Seconds to the first 200: of the engine alone, of the engine inside the image, of /health."""
        with contextlib.ExitStack() as stack:
            container, pid = self.start(stack, command=["/opt/modelarts-engine/bin/start"])
            with inside(pid):
                self.add("start", "engine alone", until(pid, "direct"))
            container.kill()
            _, pid = self.start(stack)
            with inside(pid), ThreadPoolExecutor() as pool:
                health = pool.submit(until, pid, "ours", "/health")
                self.add("start", "engine in the image", until(pid, "direct"))
                self.add("start", "/health", health.result())

    def serves(self, rounds: int, duration: int) -> None:
        """Everything about a running container. The other proxies run in it, too, so that no one has a share of the processors of its own."""
        with contextlib.ExitStack() as stack:
            container, pid = self.start(stack)
            serving.Service(container).wait(60)
            workers = len(processes(container)["proxy"]) - 1
            ours = container.exec_run(["cat", "/etc/nginx/nginx.conf"]).output.decode()
            ours = re.sub(r"(?m)^ *(ssl_|pid ).*\n", "", ours).replace("listen 8080 ssl", "listen 8081")
            others = {
                "plain": (HERE / "plain.conf").read_text(),
                "bare": f"worker_processes {workers};\n" + (HERE / "bare.conf").read_text(),
                "ours, no TLS": f"worker_processes {workers};\n" + ours,
            }
            for variant, conf in others.items():
                environment = {"CONF": conf, "NAME": part_of(variant)}
                container.exec_run(["sh", "-c", PROXY], environment=environment, detach=True)
                with inside(pid):
                    until(pid, variant)
            parts = processes(container)
            # The access log's readers are no part of the image, but on this machine: the container engine, and the first process's parent.
            readers = [
                int(each.parent.name) for each in Path("/proc").glob("[0-9]*/comm") if each.read_text() == "dockerd\n"
            ]
            cpu = {
                variant: {
                    "proxy": parts.get(part_of(variant), []),
                    "engine": parts["engine"],
                    "log": [*readers, int(stat(pid)[1])],
                }
                for variant in PORTS
            }
            with inside(pid):
                for _ in range(rounds):
                    for (name, size), connections in itertools.product(SIZES.items(), (1, 16, 64)):
                        for variant in PORTS if (name, connections) == ("tiny", 16) else report.MAIN:
                            result = load(variant, size, connections, duration, cpu[variant])
                            self.add("load", f"{name}/{connections}/{variant}", result)
                    for variant in report.MAIN:
                        self.add("stream", variant, stream(variant, 20))
                    for variant in TLS:
                        self.add("handshakes", variant, handshakes(variant, 1))
            self.found["memory"] = {part: memory(parts[part]) for part in ("proxy", "engine", "rest")}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("image", nargs="?", default="triton", help="its name (default: triton)")
    parser.add_argument("--quick", action="store_true", help="one short round: does it work, not how fast is it")
    arguments = parser.parse_args()
    if os.geteuid() or not shutil.which("wrk"):
        parser.error("needs root, for the container's network, and the command wrk (Debian package wrk)")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that the containers go
    rounds, duration = (1, 1) if arguments.quick else (3, 3)
    try:
        bench = Bench(arguments.image)
        bench.serves(rounds, duration)
        for _ in range(rounds):
            bench.starts()
    except (engine.EngineError, serving.ServingError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    report.write(bench.found, OUT)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
