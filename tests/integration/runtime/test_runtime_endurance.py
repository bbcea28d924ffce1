"""What shows only over time or by repetition: ten minutes of load (`--soak-seconds 600`) and every death twenty times."""

import re
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from conftest import MIXED, Launch, Load


def test_load_goes_on_through_reloads_and_renewals(launch: Launch, pytestconfig: pytest.Config) -> None:
    """Mixed load, a reload every 20 s, certificates renewed meanwhile: no failed request."""
    seconds = int(pytestconfig.getoption("soak_seconds"))
    interval = min(20, seconds // 4)
    server = launch(settings={"tls.env": {"CHECK_SECONDS": max(15, seconds // 4), "RENEW_DAYS": 400}}).wait_ready()
    began = time.monotonic()
    reloads = 0
    with Load(server, MIXED) as load:
        while time.monotonic() < began + seconds and not load.failures:
            reloads += 1
            load.stopped.wait(max(0.0, began + reloads * interval - time.monotonic()))
            server.run("/opt/modelarts-engine/bin/proxy", "reload")
    renewals = server.logs().count("certificate renewed")
    print(f"{load.counts} in {time.monotonic() - began:.0f} s, {reloads} reloads, {renewals} renewals")
    assert load.failures == []
    assert min(load.counts.values()) > seconds / 2
    assert reloads >= seconds // 20
    assert renewals >= 1


# Starts the serving again and again and kills $0, each time at another moment of the supervisor's round.
# Prints a line each: exit code, hundredths of a second until it was there, what the supervisor said last.
KILLS = r"""
clock() { read -r now _ </proc/uptime; now=${now%.*}${now#*.}; }
for n in $(seq 20); do
  rm -f /tmp/log
  timeout -s KILL 30 sh /home/mind/run.sh >>/tmp/log 2>&1 & run=$!
  until /opt/modelarts-engine/bin/healthcheck >/dev/null; do [ -e /proc/$run ] || break; done
  sleep "0.$((n * 4 + 10))"
  for p in $(ls /proc | grep "^[0-9]" | sort -n); do
    tr "\\0" " " </proc/$p/cmdline 2>/dev/null | grep -q "$0" && kill -KILL $p && break
  done
  clock; killed=$now
  wait $run; code=$?
  clock
  echo "$code $((now - killed)) $(grep serving: /tmp/log | tail -n 1)"
done
"""
VICTIMS = {"^python3 ": "engine", "^nginx: master": "proxy", "^/bin/sh /opt/modelarts-engine/bin/tls": "tls"}


def test_twenty_kills_of_each_process_are_twenty_exits(launch: Launch) -> None:
    """The start command's end is what ends a container (that is tested elsewhere), so one container serves for twenty starts."""

    def deaths(victim: str) -> list[str]:
        return launch(command=["tail", "-f", "/dev/null"], init=True).run("sh", "-c", KILLS, victim).splitlines()

    with ThreadPoolExecutor() as pool:
        for name, lines in zip(VICTIMS.values(), pool.map(deaths, VICTIMS), strict=True):
            found = [
                re.fullmatch(rf"137 (\d+) serving: {name} \(pid \d+\) was killed by SIGKILL", line) for line in lines
            ]
            assert len(found) == 20
            assert all(found), lines
            slowest = max(int(match[1]) for match in found if match) / 100
            print(f"{name}: 20 exits, the slowest after {slowest} s")
            assert slowest <= 5
