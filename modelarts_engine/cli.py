"""The commands."""

from __future__ import annotations

import argparse
import contextlib
import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from modelarts_engine import cache as kept
from modelarts_engine import package as packages
from modelarts_engine import push as pushing
from modelarts_engine.playbook import DONE, FAILED, NOT_FIT, ROOT, USAGE, run, user_cache
from modelarts_engine.progress import Progress

# Errors that end a command with a message, by the names of classes that are only imported when they are needed.
CODES = {
    "UnreachableError": NOT_FIT,
    "NotFitError": NOT_FIT,
    "EngineError": FAILED,
    "NoImageError": USAGE,
    "ServingError": FAILED,
    "InputError": USAGE,
    "RehearsalError": USAGE,
    "RegistryError": FAILED,
    "LoginError": FAILED,
    "ManifestError": FAILED,
    "SwrError": FAILED,
    "SecretsError": USAGE,
    "CertificateError": FAILED,
}


# A disk that takes no more is nothing that was typed wrong.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)


def _recipes() -> list[str]:
    return sorted(path.stem.removeprefix("build_") for path in (ROOT / "playbooks").glob("build_*.yml"))


def _variables(pairs: list[str]) -> dict[str, Any]:
    """`-e name=value`, `-e '{"name": …}'` and `-e @file`, as ansible-playbook takes them."""
    from ansible.errors import AnsibleError
    from ansible.parsing.dataloader import DataLoader
    from ansible.parsing.splitter import parse_kv

    result: dict[str, Any] = {}
    for pair in pairs:
        try:
            if pair.startswith("@"):
                data = DataLoader().load_from_file(str(Path(pair[1:]).resolve()))
            elif pair.lstrip().startswith(("{", "[")):
                data = json.loads(pair)
            else:
                data = parse_kv(pair)
            if not isinstance(data, dict) or "_raw_params" in data:
                raise ValueError("give name=value, a JSON object, or @file")
            # Plain values only: they reach Ansible as JSON, which cannot hold a vaulted one.
            json.dumps(data)
        except (AnsibleError, ValueError, TypeError) as error:
            vaulted = "; put vaulted values into the inventory" if isinstance(error, TypeError) else ""
            raise ValueError(f"-e {pair}: {error}{vaulted}") from error
        result.update(data)
    return _typed(result)


def _typed(values: dict[str, Any]) -> dict[str, Any]:
    """Numbers, booleans and lists that a command line can only say as text, as the roles' specs want them.

    What does not fit stays as it is, to be refused by name.
    """
    from modelarts_engine import engine_client

    collection = engine_client.keys.Collection(ROOT)
    options = collection.settings() | {
        name: o for role in collection.roles() for name, o in collection.options(role).items()
    }
    for name in set(values) & set(options):
        if isinstance(values[name], str) and "{{" not in values[name]:
            with contextlib.suppress(engine_client.keys.InputError):
                values[name] = engine_client.keys.arguments({name: options[name]}, {name: values[name]}, name)[name]
    return values


def build(arguments: argparse.Namespace) -> int:
    """Builds images, each on one build host; the last lines name it and show the rehearsal's answer."""
    from modelarts_engine import fleet

    for image in arguments.image:
        if image not in _recipes():
            print(
                f"error: there is no recipe for {image}; there is {', '.join(_recipes())} (playbooks/build_*.yml)",
                file=sys.stderr,
            )
            return USAGE
    jobs = [fleet.Job(image, image, None, {}) for image in dict.fromkeys(arguments.image)]
    jobs += fleet.read(arguments.matrix, _recipes()) if arguments.matrix else []
    if not jobs:
        raise ValueError(f"name an image ({', '.join(_recipes())}) or give a --matrix")
    extra = _variables(arguments.extra)
    hosts = [host for host in (arguments.hosts or "").split(",") if host]
    if "image_hosts" in extra and (hosts or len(jobs) > 1):
        raise ValueError("give --hosts or -e image_hosts, not both; several images are given out by --hosts")
    # Without these the image is built where the inventory says, which is one host.
    if "image_hosts" not in extra and (arguments.inventory or arguments.matrix or hosts or len(jobs) > 1):
        may = fleet.assign(jobs, hosts, arguments.inventory)
        if len(jobs) > 1 or arguments.matrix or len(may[0]) > 1:
            options = [f"--rebuild={arguments.rebuild}"] * bool(arguments.rebuild)
            options += ["--rehearse"] * arguments.rehearse + [f"--timeout={arguments.timeout}"]
            return fleet.Fleet(jobs, may, fleet.command(arguments.extra, arguments.inventory, options)).run()
        extra["image_hosts"] = may[0][0]
    return _build(arguments, jobs[0].recipe, extra)


def _build(arguments: argparse.Namespace, recipe: str, extra: dict[str, Any]) -> int:
    """Builds one image in this process."""
    image = str(extra.get("image_name", recipe))
    if arguments.rebuild:
        extra["image_rebuild"] = arguments.rebuild
    if arguments.rehearse:
        extra["image_rehearse"] = True
    progress = Progress(image)
    with pushing.credentials(extra):
        outcome = run(
            f"build_{recipe}.yml",
            inventory=arguments.inventory,
            extra=extra,
            progress=progress,
            timeout=arguments.timeout,
        )
    for result in outcome.of("image_rehearse"):
        if "answer" in result:
            print(f"\n  {result['prompt']}\n  > {_shown(result['answer'])}\n")
    if outcome.code == DONE:
        print(f"{image}: done in {progress.elapsed:.1f} s; ./runner.py serve {image} keeps it up")
    else:
        print(f"{image}: failed after {progress.elapsed:.1f} s{outcome.kept}", file=sys.stderr)
    return outcome.code


def doctor(arguments: argparse.Namespace) -> int:
    """Says what of the build hosts is fit and what is not; changes nothing."""
    extra = {**_variables(arguments.extra), "build_host_install_engine": False}
    return run("doctor.yml", inventory=arguments.inventory, extra=extra, progress=Progress("doctor", tables=True)).code


def package(arguments: argparse.Namespace) -> int:
    """Writes the model folder that goes to OBS; without a name, says which kinds there are."""
    return packages.package(arguments, _variables(arguments.extra))


def push(arguments: argparse.Namespace) -> int:
    """Pushes an image to SWR or another registry; credentials come from the environment (see roles/swr_push)."""
    return pushing.push(arguments, _variables(arguments.extra))


def cache(arguments: argparse.Namespace) -> int:
    """Lists the stages that are kept for later builds, or removes old ones."""
    return kept.run(arguments, None if arguments.repository else _client(arguments))


def _shown(answer: Any) -> str:
    """An answer as people read it: text as it is, numbers as JSON."""
    return answer.strip() if isinstance(answer, str) else json.dumps(answer)


def _model(arguments: argparse.Namespace, engine: str) -> Path:
    """The model folder that was named, or the one that a local build of this engine makes."""
    return Path(arguments.model or user_cache() / "models" / engine / "model")


def _client(arguments: argparse.Namespace) -> Any:
    from modelarts_engine import engine_client

    return engine_client.engine.connect(arguments.engine_url or engine_client.DEFAULT_URL)


def serve(arguments: argparse.Namespace) -> int:
    """Keeps an image up as the platform would run it, until it is stopped."""
    from modelarts_engine import engine_client

    client = _client(arguments)
    if arguments.stop:
        _stop(client)
        return DONE
    image = engine_client.find_image(client, arguments.image)
    asked = engine_client.rehearsal.of_image(client.api.inspect_image(image))
    model = _model(arguments, asked.engine).resolve()
    if not model.is_dir():
        print(f"error: there is no model folder {model}; give one with --model", file=sys.stderr)
        return USAGE
    _stop(client)
    try:
        with engine_client.engine.engine_errors():
            container = engine_client.serving.run_as_platform(
                client, image, model, port=arguments.port, name=engine_client.SERVED
            )
        service = engine_client.serving.Service(container)
        service.wait(arguments.wait)
    except BaseException:
        engine_client.engine.remove(client, engine_client.SERVED)
        raise
    ca = ROOT / ".cache" / "serve" / "ca.crt"
    ca.parent.mkdir(parents=True, exist_ok=True)
    ca.write_text(service.ca)
    print(
        f"{image} serves at https://localhost:{service.port}, CA certificate in {ca.relative_to(Path.cwd()) if ca.is_relative_to(Path.cwd()) else ca}"
    )
    print(f'ask it: ./runner.py infer "{asked.question}"; stop it: ./runner.py serve --stop')
    return DONE


def _stop(client: Any) -> None:
    """Ends what is served, and removes what a service that died has left."""
    from modelarts_engine import engine_client

    container = engine_client.running(client)
    if container is not None:
        print(f"stopping {container.attrs['Config']['Image']} after what is in flight", flush=True)
        with engine_client.engine.engine_errors():
            engine_client.serving.Service(container).stop()
    engine_client.engine.remove(client, engine_client.SERVED)


def infer(arguments: argparse.Namespace) -> int:
    """Asks the image that `serve` keeps up."""
    from modelarts_engine import engine_client

    if not arguments.text.strip():
        raise ValueError("there is nothing to ask: the text is empty")
    container = engine_client.running(_client(arguments))
    if container is None:
        print("error: nothing is served; start it with ./runner.py serve triton", file=sys.stderr)
        return USAGE
    service = engine_client.serving.Service(container)
    asked = engine_client.rehearsal.of_image(container.image.attrs)
    if arguments.stream:
        for piece in service.stream(asked, arguments.text, arguments.max_tokens):
            print(piece, end="", flush=True)
        print()
    else:
        print(_shown(service.infer(asked, arguments.text, arguments.max_tokens)))
    return DONE


def verify(arguments: argparse.Namespace) -> int:
    """Checks an image against the platform's contract, clause by clause."""
    from modelarts_engine import engine_client

    if shutil.which("docker") is None:  # what testinfra reaches a container with
        print(
            "error: verify needs the command docker (on Debian and Ubuntu: apt-get install docker.io)", file=sys.stderr
        )
        return NOT_FIT
    client = _client(arguments)
    image = engine_client.find_image(client, arguments.image)
    asked = engine_client.rehearsal.of_image(client.api.inspect_image(image))
    url = arguments.engine_url or engine_client.DEFAULT_URL
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        str(ROOT / "verify"),
        f"--image={image}",
        f"--model={_model(arguments, asked.engine)}",
        f"--engine-url={url}",
    ]
    code = subprocess.run([*command, *arguments.pytest], cwd=ROOT, check=False).returncode
    return {0: DONE, 4: USAGE}.get(code, FAILED)  # 4: pytest refuses its arguments


def test(arguments: argparse.Namespace) -> int:
    """Everything that must hold before a change lands."""
    from modelarts_engine import checks

    return checks.run_all(arguments.only)


def _count(text: str) -> int:
    """A whole number that is not negative."""
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 up")
    return int(text)


def _positive(text: str) -> int:
    """A whole number above 0."""
    if not _count(text):
        raise argparse.ArgumentTypeError(f"{text} is not a whole number from 1 up")
    return int(text)


class _ShowVersion(argparse.Action):
    """`--version`: reads the version only when it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        import yaml

        print(yaml.safe_load((ROOT / "galaxy.yml").read_text())["version"])
        parser.exit()


def _port(text: str) -> int:
    """A port of this machine; 0 for any."""
    if _count(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text} is no port; give 0 to 65535")
    return int(text)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(
        prog="runner.py", description="Turn a stock inference server into a ModelArts custom engine image.",
        epilog="Exit codes: 0 done, 1 the build or check failed, 2 wrong usage or input, 3 the host is not fit, 130 interrupted.",
    )  # fmt: skip
    top.add_argument("--version", action=_ShowVersion, nargs=0, help="print the version")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, function: Any, *, playbook: bool = False, engine: bool = False) -> argparse.ArgumentParser:
        command = commands.add_parser(
            name, allow_abbrev=False, help=(function.__doc__ or "").splitlines()[0], description=function.__doc__
        )
        command.set_defaults(function=function)
        if playbook:
            command.add_argument("-i", "--inventory", help="inventory, default inventories/local")
            command.add_argument(
                "-e",
                "--extra",
                action="append",
                default=[],
                metavar="NAME=VALUE",
                help="a variable, a JSON object or @file; may be repeated",
            )
        if engine:
            command.add_argument("--engine-url", help="the container engine, default unix:///var/run/docker.sock")
        return command

    command = add("build", build, playbook=True)
    command.add_argument("image", nargs="*", help=f"one or more of: {', '.join(_recipes())}")
    command.add_argument("--hosts", metavar="A,B", help="the build hosts that share the work, default the inventory's")
    command.add_argument("--matrix", metavar="FILE", help="a YAML list of images: image, name, inventory, variables")
    command.add_argument("--rebuild", metavar="STAGE", help="build this stage and those after it again")
    command.add_argument("--rehearse", action="store_true", help="rehearse an image that was proven before, too")
    command.add_argument(
        "--timeout", type=_count, default=0, metavar="SECONDS", help="give up after this time, default never"
    )
    packages.arguments(add("package", package, playbook=True, engine=True))
    command = add("serve", serve, engine=True)
    command.add_argument(
        "image",
        nargs="?",
        default="triton",
        help="an image; triton, the default, is short for modelarts-engine/triton:latest",
    )
    command.add_argument(
        "--model", metavar="DIR", help="model folder, default the model that the local build of its engine made"
    )
    command.add_argument("--port", type=_port, default=8080, help="port on loopback, default 8080; 0 takes a free one")
    command.add_argument(
        "--wait",
        type=float,
        default=120,
        metavar="SECONDS",
        help="how long the image may take to be healthy, default 120",
    )
    command.add_argument("--stop", action="store_true", help="stop what is served; there is one service a machine")
    command = add("infer", infer, engine=True)
    command.add_argument(
        "text", help='what to ask: a text, or JSON such as "[1.0, 2.0]" where the engine takes numbers'
    )
    command.add_argument("--max-tokens", type=_positive, default=64, help="tokens of the answer at most, default 64")
    command.add_argument("--stream", action="store_true", help="print the answer as it is made")
    command = add("verify", verify, engine=True)
    command.add_argument("image", help="an image, triton for modelarts-engine/triton:latest")
    command.add_argument(
        "--model", metavar="DIR", help="model folder, default the model that the local build of its engine made"
    )
    command.add_argument("pytest", nargs="*", help="further arguments for pytest, after --")
    pushing.arguments(add("push", push, playbook=True))
    kept.arguments(add("cache", cache, engine=True))
    command = add("test", test)
    command.add_argument(
        "--only",
        action="append",
        choices=["lint", "unit", "integration", "molecule", "soak"],
        help="a part; may be repeated. soak, ten minutes of load, runs only when named",
    )
    add("doctor", doctor, playbook=True)
    return top


def main(argv: list[str]) -> int:
    """Runs one command; returns the exit code."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started this
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 - for as long as this runs
    arguments = parser().parse_args(argv)
    os.environ.setdefault("ANSIBLE_CONFIG", str(ROOT / "ansible.cfg"))
    os.environ.setdefault("ANSIBLE_LOCAL_TEMP", str(ROOT / ".cache" / "ansible-tmp"))
    inventory = getattr(arguments, "inventory", None)
    if inventory and "," not in inventory and not Path(inventory).exists():
        print(
            f"error: there is no inventory {inventory}; give a file or a folder, such as inventories/gpu",
            file=sys.stderr,
        )
        return USAGE
    try:
        return int(arguments.function(arguments))
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print("error: standard output was closed before all was said", file=sys.stderr)
        return FAILED
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return NOT_FIT if getattr(error, "errno", None) in FULL else USAGE
    except Exception as error:
        kind = type(error).__name__
        if kind not in CODES:
            raise
        print(f"error: {error}", file=sys.stderr)
        return CODES[kind]
