"""What was measured, as a table and as a plot."""

import json
import sys
from pathlib import Path
from statistics import median
from typing import Any

MAIN = ("direct", "ours", "plain")


def middle(runs: list[dict[str, Any]], name: str) -> float:
    return float(median(run[name] for run in runs))


def goals(found: dict[str, Any]) -> list[str]:
    """One row each: what is to be reached, the figure, the goal, whether it is met."""
    rate, p99 = (
        {each: middle(found["load"][f"tiny/16/{each}"], name) for each in (*MAIN, "bare")} for name in ("rate", "p99")
    )
    first = {each: middle(found["stream"][each], "first") for each in MAIN}
    starts = [a - b for a, b in zip(found["start"]["/health"], found["start"]["engine in the image"], strict=True)]
    cpu = {each: cpu_per_request(found["load"][f"tiny/16/{each}"]) for each in ("direct", "ours")}
    server = {each: sum(sum(cpu[each][part]) for part in ("engine", "proxy")) for each in cpu}
    small = sum(found["memory"][part]["pss"] for part in ("proxy", "rest"))
    rows: list[tuple[str, float, str, float | None, float | None]] = [
        ("tiny, 16: requests/s, ours / direct", rate["ours"] / rate["direct"], ">=", 0.8, 0.65),
        ("tiny, 16: requests/s, ours / plain", rate["ours"] / rate["plain"], ">=", 2, 1.6),
        (
            "tiny, 16: requests/s, bare / plain: what any nginx could reach",
            rate["bare"] / rate["plain"],
            "",
            None,
            None,
        ),
        (
            "tiny, 16: CPU of engine and proxy per request, direct / ours",
            server["direct"] / server["ours"],
            "",
            None,
            None,
        ),
        ("tiny, 16: p99, ours / direct", p99["ours"] / p99["direct"], "<=", 1.5, None),
        ("first streamed chunk after direct's, ms", first["ours"] - first["direct"], "<=", 2, None),
        ("first 200 on /health after the engine's, s", median(starts), "<=", 0.3, None),
        ("resident, proxy and supervisor, MB", small, "<=", 40, None),
        ("failed requests", sum(run["failed"] for runs in found["load"].values() for run in runs), "<=", 0, None),
    ]
    return [
        f"| {what} | {value:.2f} | {verdict(value, sign, goal, floor)} |" for what, value, sign, goal, floor in rows
    ]


def verdict(value: float, sign: str, goal: float | None, floor: float | None) -> str:
    """Two cells: what was wanted, and whether it was reached."""
    if goal is None:
        return "- | "
    if floor is not None and floor <= value < goal:
        return f"{sign} {goal:g} | missed, above the least of {floor:g}"
    return f"{sign} {goal:g} | {'met' if (value >= goal if sign == '>=' else value <= goal) else 'missed'}"


def cpu_per_request(runs: list[dict[str, Any]]) -> dict[str, list[float]]:
    """Microseconds of each part, user and system: medians over the runs."""
    return {part: [median(run["cpu"][part][kind] for run in runs) for kind in (0, 1)] for part in runs[0]["cpu"]}


def table(found: dict[str, Any]) -> str:
    """All figures, in Markdown."""
    cells, cpu = [], []
    for cell in dict.fromkeys(key.rpartition("/")[0] for key in found["load"]):
        values = {
            name: [middle(found["load"][f"{cell}/{each}"], name) for each in MAIN] for name in ("rate", "p50", "p99")
        }
        direct, ours, plain = values["rate"]
        texts = [
            " / ".join(f"{value:.{0 if name == 'rate' else 2}f}" for value in each) for name, each in values.items()
        ]
        cells.append(
            f"| {cell.replace('/', ', ')} | {texts[0]} | {ours / direct:.2f} | {ours / plain:.2f} | {texts[1]} | {texts[2]} |"
        )
    for key in (each for each in found["load"] if "/16/" in each):
        spent = cpu_per_request(found["load"][key])
        texts = [f"{user:.0f} + {system:.0f}" for user, system in spent.values()]
        cpu.append(f"| {key.replace('/', ', ')} | {' | '.join(texts)} | {sum(map(sum, spent.values())):.0f} |")
    sections = {
        "| goal | figure | wanted | |": goals(found),
        "| model, connections | requests/s: direct / ours / plain | ours/direct | ours/plain | p50, ms | p99, ms |": cells,
        "| CPU µs per request, user + system | proxy | engine | log reader | client | sum |": cpu,
        "| stream | first chunk, ms | gap p50, ms | gap p99, ms |": [
            f"| {key} | {' | '.join(f'{middle(runs, name):.2f}' for name in ('first', 'gap50', 'gap99'))} |"
            for key, runs in found["stream"].items()
        ],
        "| new TLS handshakes | per second |": [
            f"| {key} | {median(each):.0f} |" for key, each in found["handshakes"].items()
        ],
        "| first 200 after the container's start | s |": [
            f"| {key} | {median(each):.2f} |" for key, each in found["start"].items()
        ],
        "| memory after the load | shared pages counted once, MB | counted for each process, MB |": [
            f"| {part} | {each['pss']:.1f} | {each['rss']:.1f} |" for part, each in found["memory"].items()
        ],
    }
    return (
        found["machine"]
        + "\n\n"
        + "\n\n".join("\n".join([head, "|---" * (head.count("|") - 1) + "|", *rows]) for head, rows in sections.items())
        + "\n"
    )


def plot(found: dict[str, Any], path: Path) -> None:
    """Throughput relative to direct, and p99, for each workload."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    cells = list(dict.fromkeys(key.rpartition("/")[0] for key in found["load"]))
    figure, axes = pyplot.subplots(1, 2, figsize=(12, 4.5), layout="constrained")
    for axis, name, title in zip(axes, ("rate", "p99"), ("requests/s, direct = 1", "p99, direct = 1"), strict=True):
        for offset, variant in enumerate(MAIN):
            own, direct = (
                [middle(found["load"][f"{cell}/{each}"], name) for cell in cells] for each in (variant, "direct")
            )
            places = [index + 0.27 * (offset - 1) for index in range(len(cells))]
            axis.bar(places, [a / b for a, b in zip(own, direct, strict=True)], 0.25, label=variant)
        axis.set_xticks(range(len(cells)), [cell.replace("/", "\n") for cell in cells])
        axis.set_title(title)
        axis.legend()
    figure.savefig(path, dpi=110)


def write(found: dict[str, Any], folder: Path) -> None:
    """Prints the table; writes table.md, results.json and, where matplotlib is installed, plot.png."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.json").write_text(json.dumps(found))
    text = table(found)
    (folder / "table.md").write_text(text)
    print(text)
    try:
        plot(found, folder / "plot.png")
    except ImportError:
        print("no plot: pip install -r bench/requirements.txt", file=sys.stderr)
