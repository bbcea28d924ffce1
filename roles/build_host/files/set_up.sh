#!/bin/sh
# Brings what the probe found missing (MISSING: engine, running, client, mmdebstrap) and has the engine answer at URL. Needs root.
set -eu

die() {
    printf '%s\n' "$1" >&2
    if [ -s "${2:-}" ]; then tail -n "${3:-12}" "$2" >&2; fi
    exit 1
}
answers() { docker -H "$URL" version > /dev/null 2>&1; }
log=$(mktemp)
trap 'rm -f "$log"' EXIT

packages=
case " $MISSING " in *" engine "*) packages="docker.io iptables" ;; esac
case " $MISSING " in *" mmdebstrap "*) packages="$packages mmdebstrap" ;; esac
if [ "$MISSING" != running ]; then
    command -v apt-get > /dev/null || die "This host has no apt-get: install the container engine ($MISSING) by its own means."
    apt-get -q update > "$log" 2>&1 || die "apt-get update failed; check the host's network and apt sources:" "$log"
    # Debian 13 has the command in a package of its own, Debian 12 has no such package.
    case " $MISSING " in *" client "*)
        if apt-cache show docker-cli > /dev/null 2>&1; then packages="$packages docker-cli"; else packages="$packages docker.io"; fi ;;
    esac
    # shellcheck disable=SC2086 # a list of words
    DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends $packages > "$log" 2>&1 ||
        die "apt-get install$(printf ' %s' $packages) failed:" "$log"
fi
case " $MISSING " in *" running "*) ;; *) exit 0 ;; esac

if [ -d /run/systemd/system ]; then
    systemctl enable --now docker.socket docker.service > "$log" 2>&1 || die "systemd could not start the engine; 'journalctl -u docker' says why:" "$log"
    daemon=
else
    case $URL in
        unix:///var/run/docker.sock | unix:///run/docker.sock) ;;
        *) die "An engine is only started at unix:///var/run/docker.sock, not at $URL." ;;
    esac
    # Without an init system nobody has mounted the control groups.
    grep -qE '^[^ ]+ /sys/fs/cgroup[^ ]* cgroup' /proc/mounts || mount -t cgroup2 cgroup2 /sys/fs/cgroup
    daemon=$(cat /var/run/docker.pid 2> /dev/null || true)
    if [ -z "$daemon" ] || ! kill -0 "$daemon" 2> /dev/null; then # the package's own script may have started it
        rm -f /var/run/docker.pid
        setsid dockerd -H unix:///var/run/docker.sock > /var/log/dockerd.log 2>&1 < /dev/null &
        daemon=$!
    fi
fi
deadline=$(($(date +%s) + 60))
until answers; do
    if [ -n "$daemon" ] && ! kill -0 "$daemon" 2> /dev/null; then die "The engine ended while it started. The end of /var/log/dockerd.log:" /var/log/dockerd.log; fi
    if [ "$(date +%s)" -ge "$deadline" ]; then die "The engine does not answer at $URL after 60 s. The end of /var/log/dockerd.log:" /var/log/dockerd.log; fi
    sleep 0.2
done
