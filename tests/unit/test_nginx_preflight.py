"""Values that would break out of their place in nginx's configuration, or that nginx refuses, are refused before anything is started."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
GOOD: list[dict[str, Any]] = [
    {},
    {"headers": {"X-Content-Type-Options": "nosniff", "X-A": "a; b='c'"}},
    {"allowed_hosts": ["model.example", "*.model.example", "localhost", "192.0.2.7", "[2001:db8::1]"]},
    {"closed_paths": ["^/v2/repository(/|$)", "^/a\\.b"]},
    {"body_limit": "15728640", "readiness_body": '{"a": 1}'},
]
BAD: list[dict[str, Any]] = [
    {"headers": {"Y ' ; return 200 INJ; #": "v"}},
    {"headers": {"X-A": "v\\", "X-B": "; return 200 INJ; #"}},
    {"headers": {"X-A": "$http_authorization"}},
    {"headers": {"X A": "v"}},
    {"headers": {"": "v"}},
    {"headers": {"X-A": 'v"'}},
    {"headers": {"X-A\n": "v"}},
    {"allowed_hosts": ["a\\", " 1; include /etc/passwd*; #"]},
    {"allowed_hosts": ["include"]},
    {"allowed_hosts": ["default"]},
    {"allowed_hosts": ["model.example\n"]},
    {"allowed_hosts": ["~.*"]},
    {"closed_paths": ["/a\\"]},
    {"closed_paths": ["("]},
    {"closed_paths": ['/"']},
    {"tls_ciphers": []},
    {"tls_ciphers": ["aNULL"]},
    {"tls_ciphers": ["ECDHE-RSA-NULL-SHA"]},
    {"tls_ciphers": ["ECDHE-ECDSA-AES128-GCM-SHA256;"]},
    {"body_limit": "15m\n"},
    {"body_limit": "99999999999999999999g"},
    {"worker_connections": 10**20},
    {"readiness_path": "/ready\\"},
    {"readiness_body": "notjson"},
]


def test_what_breaks_the_configuration_is_refused_and_nothing_else(tmp_path: Path) -> None:
    """All in one run: a play of its own would take a second each."""
    needed = {"nginx_hardening_upstream_port": 8000, "nginx_hardening_readiness_path": "/v2/health/ready"}
    tasks: list[dict[str, Any]] = []
    for number, case in enumerate([*GOOD, *BAD]):
        values = needed | {f"nginx_hardening_{name}": value for name, value in case.items()}
        role = {"name": "modelarts.engine.nginx_hardening", "tasks_from": "preflight.yml"}
        check = {"name": "Check", "ansible.builtin.include_role": role, "vars": values}
        note = {"name": "Note", "ansible.builtin.set_fact": {"refused": f"{{{{ refused + [{number}] }}}}"}}
        tasks.append({"name": f"Case {number}", "block": [check], "rescue": [note]})
    tasks.append(
        {"name": "Tell", "ansible.builtin.copy": {"content": "{{ refused }}", "dest": str(tmp_path / "refused")}}
    )
    play = {"name": "Cases", "hosts": "localhost", "gather_facts": False, "vars": {"refused": []}, "tasks": tasks}
    (tmp_path / "play.yml").write_text(json.dumps([play]))
    command = [str(Path(sys.executable).with_name("ansible-playbook")), "-i", "localhost,", "-c", "local"]
    command += ["-e", f"ansible_python_interpreter={sys.executable}", str(tmp_path / "play.yml")]
    environment = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    refused = set(json.loads((tmp_path / "refused").read_text()))
    wrong = [case for n, case in enumerate([*GOOD, *BAD]) if (n in refused) != (case in BAD)]
    assert wrong == []
