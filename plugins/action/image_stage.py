# Copyright: the modelarts.engine authors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""Looks up, starts, commits and removes what a stage needs on the build host's engine. Runs on the controller, through the engine's API."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase
from ansible.release import __version__ as core_version
from ansible_collections.modelarts.engine.plugins.module_utils import claims, engine, interpreter
from ansible_collections.modelarts.engine.plugins.module_utils.cache import Cache


class ActionModule(ActionBase):
    """See `ansible-doc modelarts.engine.image_stage`."""

    _requires_connection = False
    _VALID_ARGS = frozenset(("state", "plan", "stage", "build", "engine_url", "may_be_down"))

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        args = self._task.args
        url = str(args["engine_url"])
        try:
            with engine.engine_errors():
                result.update(getattr(self, f"_{args['state']}")(engine.connect(url), args, task_vars or {}))
        except engine.UnreachableError as error:
            if args.get("may_be_down"):
                result.update(changed=False, down=True, proven=False, needs_base=False, images=[])
            else:
                result.update(failed=True, exit_code=3, msg=str(error))
        except engine.EngineError as error:
            result.update(failed=True, exit_code=1, msg=str(error))
        for problem in result.get("problems", []):
            self._display.warning(problem)
        return result

    @staticmethod
    def _claim(what: str, args: dict[str, Any]) -> str:
        """Name of a claim: hosts that share a cache need not build the same thing, others must."""
        return f"{what} {args['build']['cache'] or args['engine_url']}"

    @staticmethod
    def _there(client: Any, cache: Cache, key: str) -> bool:
        """Whether a stage is on the engine, or was in the cache and now is."""
        return bool(engine.find(client, key)) or cache.fetch(
            client, key, f"{engine.STAGE}:{key}", lambda: bool(engine.find(client, key))
        )

    def _looked_up(self, client: Any, args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        plan = args["plan"]
        reaped = engine.reap(client)
        stages = plan["stages"]
        names = [stage["name"] for stage in stages]
        usable = names.index(plan["rebuild"]) if plan["rebuild"] else len(stages)
        cache = Cache.of(plan["build"])
        base = plan["base"]["base_image_name"]
        cached: list[str] = []
        missing: list[dict[str, Any]] = []

        def follow(builder: str) -> None:
            """Notes what is missing of a chain; a builder is only looked at where a missing stage takes its outputs."""
            chain = [stage for stage in stages if stage["builder"] == builder]
            top = len([stage for stage in chain if stage["name"] in names[:usable]])
            done = next((n for n in range(top, 0, -1) if self._there(client, cache, chain[n - 1]["key"])), 0)
            cached.extend(stage["name"] for stage in chain[:done])
            parent = f"{engine.STAGE}:{chain[done - 1]['key']}" if done else base
            for stage in chain[done:]:
                if stage["takes"]:
                    follow(stage["takes"])
                missing.append(
                    {
                        **stage,
                        "parent": parent,
                        "container": engine.container_name(plan["image"], stage["name"]),
                        # What is to be built again is not taken from anywhere.
                        "again": stage["name"] in names[usable:],
                        "giver": engine.container_name(plan["image"], f"{stage['name']}-takes"),
                        "args": {role: plan["args"][role] for role in stage["roles"]},
                    }
                )
                parent = f"{engine.STAGE}:{stage['key']}"

        follow("")
        host = f"{plan['image']}@{task_vars['inventory_hostname']}"
        return {
            "changed": bool(reaped),
            "reaped": reaped,
            "down": False,
            "problems": cache.problems,
            "cached": cached,
            "needs_base": any(stage["parent"] == base for stage in missing) and not engine.exists(client, base),
            "images": [stage["outputs"] for stage in missing if stage["paths"]],
            "proven": not missing and engine.exists(client, f"{engine.PROVEN}:{stages[-1]['key']}"),
            "engine_url": args["engine_url"],
            "image": plan["image"],
            "add_host": {
                "host_name": host,
                "groups": [f"image_builds_{plan['image'].replace('-', '_').replace('.', '_')}"],
                "host_vars": {
                    **{name: value for arguments in plan["args"].values() for name, value in arguments.items()},
                    "image_missing": missing,
                    "image_engine_url": args["engine_url"],
                    "image_build_host": task_vars["inventory_hostname"],
                    "ansible_connection": "community.docker.docker_api",
                    "ansible_docker_docker_host": args["engine_url"],
                    "ansible_user": "root",
                    "image_build": plan["build"],
                    "image_container_environment": {
                        # A base whose Python comes without bytecode would get some from Ansible's modules.
                        "PYTHONDONTWRITEBYTECODE": "1",
                        **(engine.CA_ENVIRONMENT if plan["build"]["ca_bundle"] else {}),
                    },
                    "ansible_remote_tmp": f"{engine.VOLUME}/.ansible",
                    "ansible_python_interpreter": interpreter.PATH,
                },
            },
        }

    def _started(self, client: Any, args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        stage = args["stage"]
        cache = Cache.of(args["build"])

        def there() -> bool:
            return not stage["again"] and self._there(client, cache, stage["key"])

        # Between the look-up and the claim another run may have finished it.
        if not claims.take(self._claim(stage["key"], args), there) or there():
            return {"changed": False, "stage": stage["name"], "cached": [stage["name"]], "problems": cache.problems}
        engine.start(
            client,
            parent=stage["parent"],
            name=stage["container"],
            ca_bundle=args["build"]["ca_bundle"],
            network=args["build"]["network"],
            caches=stage["caches"],
            outputs=stage["outputs"],
            paths=stage["paths"],
            giver=stage["giver"],
        )
        environment = self._templar.template(task_vars.get("ansible_docker_extra_env") or {})
        interpreter.provide(client, stage["container"], stage["name"], environment)
        return {"changed": True, "stage": stage["name"], "cached": []}

    def _committed(self, client: Any, args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        stage = args["stage"]
        labels = {
            engine.LABEL + "stage": stage["name"],
            engine.LABEL + "roles": " ".join(stage["roles"]),
            engine.LABEL + "ansible-core": core_version,
        }
        made = engine.commit(
            client,
            name=stage["container"],
            parent=stage["parent"],
            key=stage["key"],
            labels=labels,
            config=stage["config"],
            foreign=interpreter.TRACES if interpreter.is_borrowed(client, stage["container"]) else (),
            checked=not stage["builder"],
        )
        cache = Cache.of(args["build"])
        cache.publish(client, stage["key"], f"{engine.STAGE}:{stage['key']}")
        return {"changed": True, "stage": stage["name"], "key": stage["key"], "problems": cache.problems, **made}

    def _absent(self, client: Any, args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        engine.remove(client, args["stage"]["container"])
        engine.remove(client, args["stage"]["giver"])
        claims.give_up(self._claim(args["stage"]["key"], args))
        return {"changed": True}

    def _base_wanted(self, client: Any, args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        """Takes the base from the cache, or claims that this run makes it."""
        name = args["plan"]["base"]["base_image_name"]
        key = f"base.{name.rpartition(':')[2]}"
        cache = Cache.of(args["build"])

        def there() -> bool:
            return engine.exists(client, name) or cache.fetch(client, key, name, lambda: True)

        needed = claims.take(self._claim(key, args), there) and not there()
        if not needed:
            claims.give_up(self._claim(key, args))
        return {"changed": not needed, "needed": needed, "problems": cache.problems}

    def _base_made(self, client: Any, args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        name = args["plan"]["base"]["base_image_name"]
        key = f"base.{name.rpartition(':')[2]}"
        cache = Cache.of(args["build"])
        published = cache.publish(client, key, name)
        claims.give_up(self._claim(key, args))
        return {"changed": published, "problems": cache.problems}

    def _tagged(self, client: Any, args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        """The finished image gets its names: by key, and `latest` for people on this machine."""
        plan = args["plan"]
        key = plan["stages"][-1]["key"]
        final = f"{engine.STAGE}:{key}"
        names = [f"{engine.REPOSITORY}/{plan['image']}:{tag}" for tag in (key[:12], "latest")]
        image = client.api.inspect_image(final)
        for name in names:
            engine.tag(client, final, name)
        return {"changed": False, "image": plan["image"], "names": names, "id": image["Id"], "bytes": image["Size"]}
