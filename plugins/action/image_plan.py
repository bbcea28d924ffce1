# Copyright: the modelarts.engine authors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""Checks every argument of an image's build and computes the keys of its stages. Starts nothing, needs no engine."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleError
from ansible.plugins.action import ActionBase
from ansible.release import __version__ as core_version
from ansible.utils.collection_loader import AnsibleCollectionConfig
from ansible.utils.vars import load_extra_vars
from ansible_collections.modelarts.engine.plugins.module_utils import engine, keys, logins, registry

ROOT = Path(__file__).resolve().parents[2]
# Roles that run on the build host, outside any stage; their arguments are checked with the others.
HOST_ROLES = ("build_host", "base_image")
REPOSITORY = re.compile(r"[a-z0-9.-]+(?::\d{1,5})?(?:/[a-z0-9]+(?:[._-]{1,2}[a-z0-9]+){0,16}){1,8}")
TAG = re.compile(r":[\w.-]+$")
PICKED = re.compile(r"(?:/[\w.+*-]+)+")
NAME = re.compile(r"[a-z0-9]+(?:[._-][a-z0-9]+){0,16}")


def collection_versions(names: set[str]) -> dict[str, str]:
    """Versions of ansible-core and of the named collections, `absent` where one is not installed."""
    found = {"ansible-core": core_version}
    for name in sorted(names):
        manifests = [
            Path(top) / "ansible_collections" / name.replace(".", "/") / "MANIFEST.json"
            for top in AnsibleCollectionConfig.collection_paths
        ]
        manifest = next((m for m in manifests if m.is_file()), None)
        found[name] = json.loads(manifest.read_text())["collection_info"]["version"] if manifest else "absent"
    return found


class ActionModule(ActionBase):
    """See `ansible-doc modelarts.engine.image_plan`."""

    _requires_connection = False
    _VALID_ARGS = frozenset(("name", "base", "stages", "config", "rebuild"))

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        self._vars = task_vars or {}
        self._collection = keys.Collection(ROOT)
        try:
            plan = self._plan()
            # The roles that run on the build host get exactly what was checked here, and so do the stages' roles when their arguments are checked there.
            host_vars = {
                name: value
                for args in (plan["host"], plan["args"])
                for role in args
                for name, value in args[role].items()
            }
            result.update(
                changed=False,
                plan=plan,
                add_host={"host_name": self._vars["inventory_hostname"], "groups": [], "host_vars": host_vars},
            )
        except keys.InputError as error:
            result.update(failed=True, exit_code=2, msg=str(error))
        return result

    def _plan(self) -> dict[str, Any]:
        args = self._task.args
        name = str(args["name"])
        if not NAME.fullmatch(name):
            raise keys.InputError(
                f"image_name: {name!r} cannot name an image; use lower-case letters, digits and single . _ - between them"
            )
        stages = [stage for stage in args["stages"] if stage["roles"] != []]
        self._check_stages(stages, str(args.get("rebuild") or ""))
        self._check_names()
        settings = self._settings()
        if not args["base"]:
            raise keys.InputError(
                f"image_bases: the inventory gives no base for {self._vars.get('image_base')}; see inventories/local/group_vars/all.yml"
            )
        # What the command line and the recipe say reaches a role as it is written, whatever the spec makes of it: it outranks a host's variables.
        self._as_written = {**self._task._parent._play.get_vars(), **load_extra_vars(self._loader)}
        host_roles = (
            (*HOST_ROLES, "model_package")
            if self._templar.template(self._vars.get("image_model") or "")
            else HOST_ROLES
        )
        host = keys.resolve(
            host_roles,
            self._collection,
            lambda role, seen: self._given(
                role,
                seen,
                {
                    "base_image_name": "-",
                    "base_image_ca_bundle": settings.get("image_build_ca_bundle"),
                    **args["base"],
                },
            ),
        )
        base = host["base_image"]
        parent = keys.stage_key(
            parent="", roles=["base_image"], args={"base_image": {n: v for n, v in base.items() if n != "base_image_name"}},
            collection=self._collection, versions=lambda _: {}, config={}, epoch="",
        )  # fmt: skip
        base["base_image_name"] = f"modelarts-engine/base:{parent}"
        role_args = keys.resolve(
            [keys.role_name(r) for s in stages for r in s["roles"]],
            self._collection,
            lambda role, seen: self._given(role, seen, {}),
        )
        planned = []
        # The image's own stages, and each builder's, are a chain on the base. A stage that takes a builder's outputs, or files of a further
        # image, depends on both.
        base_key = parent
        heads: dict[str, str] = {}
        for number, stage in enumerate(stages):
            roles = [keys.role_name(role) for role in stage["roles"]]
            config = dict(args["config"]) if number == len(stages) - 1 else {}
            epoch = str(stage.get("epoch") or "")
            builder, takes = str(stage.get("builder") or ""), str(stage.get("takes") or "")
            takes = takes if takes in heads else ""
            image, paths = self._taken_from(stage)
            inputs = [heads.get(builder, base_key), *([heads[takes]] if takes else [])]
            inputs += [image.partition("@")[2], *paths] if image else []
            key = keys.stage_key(
                parent=keys.digest(inputs) if len(inputs) > 1 else inputs[0],
                roles=roles,
                args=role_args,
                collection=self._collection,
                versions=collection_versions,
                config=config,
                epoch=epoch,
            )
            planned.append(
                {
                    "name": stage["name"],
                    "roles": roles,
                    "key": key,
                    "config": config,
                    "builder": builder,
                    "takes": takes,
                    "outputs": f"{engine.STAGE}:{heads[takes]}" if takes else image,
                    "paths": paths,
                    "caches": [str(name) for name in stage.get("caches") or []],
                }
            )
            heads[builder] = key
        preflights = [role for role in (*host, *role_args) if (ROOT / "roles" / role / "tasks/preflight.yml").is_file()]
        return {
            "image": name,
            "preflights": preflights,
            "base": base,
            "stages": planned,
            "rebuild": str(args.get("rebuild") or ""),
            "host": host,
            "args": role_args,
            "build": {
                "ca_bundle": settings.get("image_build_ca_bundle", ""),
                "network": settings.get("image_build_network", "bridge"),
                "cache": settings.get("image_cache", ""),
                "cache_secret_file": settings.get("image_cache_secret_file", ""),
                "cache_credentials": settings.get("swr_push_credentials", ""),
            },
        }

    def _settings(self) -> dict[str, Any]:
        """The build's own variables, of their types; see `meta/image_variables.yml`."""
        # The cache logs in with what a push logs in with.
        login = {"swr_push_credentials": self._collection.options("swr_push")["swr_push_credentials"]}
        spec = self._collection.settings() | login
        given = {name: self._templar.template(self._vars[name]) for name in spec if self._vars.get(name) is not None}
        settings = keys.validated(spec, given, "the build", "meta/image_variables.yml")
        if bundle := settings.get("image_build_ca_bundle"):
            try:
                text = Path(bundle).read_text()
            except (OSError, UnicodeDecodeError) as error:
                raise keys.InputError(f"image_build_ca_bundle: {bundle} cannot be read: {error}") from error
            if "-----BEGIN CERTIFICATE-----" not in text:
                raise keys.InputError(f"image_build_ca_bundle: {bundle} holds no PEM certificate")
        cache = settings.get("image_cache", "")
        if cache and not REPOSITORY.fullmatch(cache):
            raise keys.InputError(
                f"image_cache: {cache!r} is no registry's repository; give registry.example.com/organisation/cache, without a tag"
            )
        secret = settings.get("image_cache_secret_file")
        if secret and not (os.access(secret, os.R_OK) and Path(secret).is_file() and Path(secret).stat().st_size):
            raise keys.InputError(f"image_cache_secret_file: {secret} is not a file that can be read, or is empty")
        if cache:
            try:
                logins.Credentials(settings["swr_push_credentials"]).of_cache(cache.partition("/")[0])
            except registry.SecretsError as error:
                raise keys.InputError(f"image_cache: {error}") from error
        return settings

    def _check_stages(self, stages: list[dict[str, Any]], rebuild: str) -> None:
        names = [stage["name"] for stage in stages]
        for stage in stages:
            if not isinstance(stage["roles"], list):
                raise keys.InputError(
                    f"image_backend_roles: the inventory gives no list of roles for stage {stage['name']} of {self._vars.get('image_base')}; "
                    "see inventories/local/group_vars/all.yml. Where the base has all that the stage would bring, the list is empty"
                )
        if not stages:
            raise keys.InputError("image_stages: an image needs at least one stage with a role")
        for name in names:
            if not NAME.fullmatch(name) or names.count(name) > 1 or "." in name:
                raise keys.InputError(
                    f"image_stages: stage name {name!r} is not usable; each is lower case without dots, and given once"
                )
        if stages[-1].get("builder"):
            raise keys.InputError(
                f"image_stages: the last stage, {names[-1]}, is a builder's; the image needs one of its own after it"
            )
        if rebuild and rebuild not in names:
            raise keys.InputError(f"image_rebuild: there is no stage {rebuild}; {keys.nearest(rebuild, names)}")

    @staticmethod
    def _taken_from(stage: Mapping[str, Any]) -> tuple[str, list[str]]:
        """The image, by digest, of which a stage takes files, and their paths; nothing where it takes none."""
        asked = stage.get("takes_from") or {}
        image, paths = str(asked.get("image") or ""), [str(path) for path in asked.get("paths") or []]
        if image and (stage.get("takes") or not paths or not all(PICKED.fullmatch(path) for path in paths)):
            raise keys.InputError(
                f"image_stages: stage {stage['name']} takes_from {image} must have paths (absolute, * for any part of a name) and no takes beside it"
            )
        name, _, digest = image.partition("@")
        # A digest alone says which image it is.
        return (f"{TAG.sub('', name)}@{digest}", paths) if image else ("", [])

    def _check_names(self) -> None:
        """Refuses variables that nothing reads: of a role in any source, and of any kind on the command line."""
        ours = [name for name in self._vars if any(name.startswith(role + "_") for role in self._collection.roles())]
        bad = self._collection.unknown(ours) or self._collection.unknown(
            load_extra_vars(self._loader), also_known=self._collection.settings()
        )
        if bad:
            raise keys.InputError("; ".join(bad))

    def _given(self, role: str, seen: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
        """What inventory, recipe and command line say of a role's arguments, templated; the command line wins over `extra`."""
        options = self._collection.options(role)
        cli = load_extra_vars(self._loader)
        raw = {name: cli.get(name, extra.get(name, self._vars.get(name))) for name in options}
        templar = self._templar.copy_with_new_env(available_variables={**self._vars, **seen})
        values = {}
        for name, value in raw.items():
            if value is None:
                continue
            try:
                values[name] = templar.template(value)
            except AnsibleError as error:
                raise keys.InputError(f"{name}: its value cannot be worked out: {error}") from error
        written = {name: value for name, value in values.items() if name in self._as_written}
        coerced = keys.arguments({name: {**options[name], "required": False} for name in written}, written, role)
        for name, value in written.items():
            if keys.canonical(coerced.get(name)) != keys.canonical(value):
                kind = options[name].get("type", "str")
                typed = keys.canonical(coerced.get(name))
                raise keys.InputError(
                    f"{name}: it must be given as {kind}, not {value!r}; with ansible-playbook as JSON: -e '{{\"{name}\": {typed}}}'"
                )
        return values
