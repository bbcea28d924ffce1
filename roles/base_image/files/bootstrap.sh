#!/bin/bash
# Bootstraps a base image and imports it into the container engine. Everything it is told comes from the environment:
#   ENGINE IMAGE        the engine's socket, the name the image gets, at the very end
#   SUITE SOURCES       Debian's suite; one-line apt sources, one a line, or nothing for the host's own
#   FLAVOUR PYTHON      debian, triton or tfserving; Python's version where the flavour needs it (3.11)
#   PACKAGES IMAGE_PATH packages separated by commas; PATH in the image
#   FILES WHEELS        a folder, and the names in it of the wheels that the flavour is made of
#   SOURCE              the name in it of the folder with the server's source, where the flavour has one to be compiled
#   CA                  a CA bundle for the downloads, or nothing
# mmdebstrap calls it again as `bootstrap.sh customize ROOT` when the packages are in.
set -euo pipefail
umask 022

say() { printf '%s\n' "$*" >&2; }

# The host's own package lists, fetched aside.
host_lists() {
    aside=(-o "Dir::State::Lists=$work/lists" -o "Dir::Cache=$work/cache" -o APT::Sandbox::User=root)
    [ ! -d "$work/lists" ] || return 0
    mkdir -p "$work/lists/partial" "$work/cache"
    apt-get "${aside[@]}" -q update > "$work/log" 2>&1 || true # what could not be read is not offered
}

# Compiles the source in "$1" with the build host's own Go, which is unpacked aside and gone afterwards. The program is kept beside the source.
compile() {
    local name go made=$1.program
    if [ ! -x "$FILES/$made" ]; then
        host_lists
        go=$(apt-cache "${aside[@]}" depends golang-go 2> /dev/null | sed -n 's/^ *Depends: \(golang-[0-9.]*\)-go$/\1/p')
        mkdir -p "$work/go"
        if ! (cd "$work/go" && apt-get "${aside[@]}" -q download "$go-go" "$go-src") > "$work/log" 2>&1; then
            say "The build host's apt sources do not offer Go, with which the stand-in for the server is compiled. They need Debian's main section."
            grep -E '^[EW]:' "$work/log" | tail -n 4 >&2 || true
            exit 1
        fi
        for name in "$work/go"/*.deb; do dpkg-deb -x "$name" "$work/go/root"; done
        (cd "$FILES/$1" && HOME=$work/go GOROOT=$work/go/root/usr/lib/${go/golang/go} GOCACHE=$work/go/cache GOPATH=$work/go/path GOPROXY=off \
            GOTOOLCHAIN=local GOFLAGS=-trimpath CGO_ENABLED=0 "$work/go/root/usr/lib/${go/golang/go}/bin/go" build -ldflags '-s -w -buildid=' \
            -o "$FILES/$made.new.$$" .)
        mv "$FILES/$made.new.$$" "$FILES/$made"
        rm -rf "$work/go"
    fi
    cp "$FILES/$made" "$work/files/server"
}

# The host's own sources of the suite, its updates and its security fixes. Only with lists does apt tell whose a source is, and a bare host
# has none; they are fetched aside. apt does not tell a source's key, so it is the distribution's.
host_sources() {
    local key
    host_lists
    # shellcheck source=/dev/null
    key=/usr/share/keyrings/$(. /etc/os-release && echo "$ID")-archive-keyring.gpg
    # shellcheck disable=SC2016 # $(…) is apt's own syntax
    apt-get "${aside[@]}" indextargets --format '$(ORIGIN) $(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' |
        awk -v suite="$SUITE" -v key="$key" '
            $1 ~ /^(Debian|Ubuntu)$/ && ($3 == suite || $3 == suite "-updates" || $3 == suite "-security") {
                where = $2 " " $3
                if (!(where in parts)) order[++n] = where
                if (!index(parts[where] " ", " " $4 " ")) parts[where] = parts[where] " " $4
            }
            END { for (i = 1; i <= n; i++) print "deb [signed-by=" key "] " order[i] parts[order[i]] }'
}

# What the image has beyond its packages. Runs outside the root, which is "$1".
customize() {
    local root=$1 site dist
    printf '#!/bin/sh\nexit 101\n' > "$root/usr/sbin/policy-rc.d" # services are not started when their package is installed
    chmod 755 "$root/usr/sbin/policy-rc.d"
    mv "$root/etc/dpkg/dpkg.cfg.d/99mmdebstrap" "$root/etc/dpkg/dpkg.cfg.d/excludes"
    echo 'Acquire::Languages "none";' > "$root/etc/apt/apt.conf.d/99mmdebstrap" # the host's proxy and CA were in it
    mv "$root/etc/apt/apt.conf.d/99mmdebstrap" "$root/etc/apt/apt.conf.d/no-languages"

    if [ "$FLAVOUR" = triton ]; then
        chroot "$root" groupadd -g 1000 triton-server
        chroot "$root" useradd -m -u 1000 -g 1000 -s /bin/bash triton-server
        site=/usr/local/lib/python$PYTHON/dist-packages
        mkdir -p "$root$site" "$root/tmp/wheel"
        cp "$FILES"/*.whl "$root/tmp/"
        chroot "$root" python3 - "$site" /tmp/wheel <<'PY'
import glob, sys, zipfile
for name, where in zip(("numpy", "nvidia_pytriton"), sys.argv[1:], strict=True):
    (wheel,) = glob.glob(f"/tmp/{name}-*.whl")
    zipfile.ZipFile(wheel).extractall(where)
PY
        find "$root$site" -type d -name tests -prune -exec rm -rf {} +
        chroot "$root" python3 -m compileall -q --invalidation-mode unchecked-hash "$site"

        dist=$root/opt/tritonserver
        mkdir "$dist"
        mv "$root"/tmp/wheel/pytriton/tritonserver/{bin,backends,caches} "$dist/"
        mv "$root/tmp/wheel/pytriton/tritonserver/python_backend_stubs/$PYTHON/triton_python_backend_stub" "$dist/backends/python/"
        mv "$root/tmp/wheel/nvidia_pytriton.libs" "$dist/lib"
        mv "$root"/tmp/wheel/nvidia_pytriton-*.dist-info/licenses/LICENSE "$dist/"
        rm "$dist"/lib/libpython3-* # another Python's stub wants it, the suite's own has its libpython
        ln -s "$(basename "$dist"/lib/libtritonserver-*.so)" "$dist/lib/libtritonserver.so"
        chmod 755 "$dist/bin/tritonserver" "$dist/backends/python/triton_python_backend_stub"
        chown -R 1000:1000 "$dist" # as NVIDIA's image has it
        echo /opt/tritonserver/lib > "$root/etc/ld.so.conf.d/tritonserver.conf"
        chroot "$root" ldconfig
        mkdir -p "$root/opt/nvidia"
        # shellcheck disable=SC2016 # it is the image that expands it
        printf '#!/bin/sh\n# Stands for the banner and checks of NVIDIA'"'"'s image.\nexec "$@"\n' > "$root/opt/nvidia/nvidia_entrypoint.sh"
        chmod 755 "$root/opt/nvidia/nvidia_entrypoint.sh"
    fi
    if [ "$FLAVOUR" = tfserving ]; then # as in the image tensorflow/serving, which has no Python either
        install -m 755 "$FILES/server" "$root/usr/bin/tensorflow_model_server"
        mkdir "$root/models"
        # shellcheck disable=SC2016 # it is the image that expands it
        printf '#!/bin/bash\n\ntensorflow_model_server --port=8500 --rest_api_port=8501 --model_name=${MODEL_NAME} %s "$@"\n' \
            '--model_base_path=${MODEL_BASE_PATH}/${MODEL_NAME}' > "$root/usr/bin/tf_serving_entrypoint.sh"
        chmod 755 "$root/usr/bin/tf_serving_entrypoint.sh"
    fi
    rm -rf "$root"/tmp/wheel "$root"/tmp/*.whl "$root"/var/log/*.log "$root"/var/log/apt/* \
        "$root"/var/cache/debconf/*-old "$root"/var/lib/dpkg/*-old "$root"/etc/{passwd,group,shadow,gshadow,subuid,subgid}- "$root/etc/hostname"
    : > "$root/etc/resolv.conf"
}

if [ "${1:-}" = customize ]; then
    customize "$2"
    exit
fi

# What an earlier run left when it was killed: its folder is there, its lock is not.
for old in /var/tmp/modelarts-base.*; do
    if [ -n "$(find "$old" -maxdepth 0 -mmin +1 -user "$(id -u)" 2>/dev/null)" ] && flock -n "$old" true; then rm -rf --one-file-system "$old"; fi
done
work=$(mktemp -d /var/tmp/modelarts-base.XXXXXX)
trap 'rm -rf --one-file-system "$work"' EXIT
trap 'exit 130' INT TERM HUP
exec 9< "$work"
flock 9
chmod 755 "$work" # mmdebstrap's user of an unprivileged build and apt's read it
export TMPDIR=$work/unpacked SOURCE_DATE_EPOCH=1704067200 # file times are cut to it, so two builds of the same packages are the same
mkdir "$work/files" "$TMPDIR"
: > "$work/log"
FILES=${FILES/#\~/$HOME}
for wheel in $WHEELS; do cp "$FILES/$wheel" "$work/files/"; done
if [ -n "$SOURCE" ]; then compile "$SOURCE"; fi
export FILES=$work/files
cp "$0" "$work/bootstrap.sh"
chmod 755 "$work/bootstrap.sh"

if [ -z "$SOURCES" ]; then SOURCES=$(host_sources); fi
if ! grep -q " $SUITE " <<< "$SOURCES"; then
    say "The build host's apt sources do not offer the suite '$SUITE'. Set base_image_suite to one that they do, or name sources in base_image_mirrors," \
        "for instance 'deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] https://MIRROR/debian $SUITE main'."
    grep -E '^[EW]:' "$work/log" | tail -n 4 >&2 || true
    exit 1
fi
if grep -q '://[^/ ]*@' <<< "$SOURCES"; then
    say "A source of the build host's apt has a password in its address, and the image would keep it. Put it into /etc/apt/auth.conf.d, or set base_image_mirrors."
    exit 1
fi
if grep -q 'https:' <<< "$SOURCES"; then PACKAGES=ca-certificates${PACKAGES:+,$PACKAGES}; fi # later stages install from there too
mapfile -t sources <<< "$SOURCES"

# The host's proxy and CA are the download's, never its other settings: those may switch checks off.
apt-config dump --format '%F "%v";%n' Acquire::http Acquire::https | grep -Ei '^Acquire::https?::(.*::)?(Proxy|Proxy-Auto-Detect|CAInfo) ' > "$work/apt.conf" || true
if [ -n "$CA" ]; then
    cp "${CA/#\~/$HOME}" "$work/ca.pem"
    printf 'Acquire::https::CAInfo "%s";\n' "$work/ca.pem" >> "$work/apt.conf"
fi
printf 'Acquire::Languages "none";\nAcquire::Retries "3";\n' >> "$work/apt.conf"

own=()
# Unpacked in memory, about 500 MB, and in a mount namespace, whose mounts end with it, however it ends.
# shellcheck disable=SC2016
if [ "$(id -u)" = 0 ]; then own=(unshare --mount sh -c 'mount -t tmpfs -o mode=755 tmpfs "$TMPDIR" && exec "$@"' sh); fi
if ! "${own[@]}" mmdebstrap --variant=minbase --format=tar --hook-dir=/usr/share/mmdebstrap/hooks/maybe-merged-usr \
    ${PACKAGES:+--include="$PACKAGES"} --aptopt="$work/apt.conf" \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
    --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/info/*' --dpkgopt='path-exclude=/usr/share/lintian/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' --dpkgopt='path-include=/usr/share/locale/locale.alias' \
    --customize-hook="$work/bootstrap.sh customize \"\$1\"" \
    "$SUITE" "$work/root.tar" "${sources[@]}" > "$work/log" 2>&1 9<&-; then
    say "The suite $SUITE could not be bootstrapped. Check that the build host reaches these sources and that they have the packages ($PACKAGES):"
    say "$SOURCES"
    grep -E '^([EW]|Err)' "$work/log" | grep -vE '^E: (command|mmdebstrap|setup) failed' | tail -n 6 >&2 || tail -n 12 "$work/log" >&2
    exit 1
fi

change=(--change "ENV PATH=$IMAGE_PATH")
if [ "$FLAVOUR" = triton ]; then
    change+=(--change 'WORKDIR /opt/tritonserver' --change 'ENTRYPOINT ["/opt/nvidia/nvidia_entrypoint.sh"]')
elif [ "$FLAVOUR" = tfserving ]; then
    change+=(--change 'ENV MODEL_BASE_PATH=/models' --change 'ENV MODEL_NAME=model' --change 'EXPOSE 8500 8501'
        --change 'ENTRYPOINT ["/usr/bin/tf_serving_entrypoint.sh"]')
else
    change+=(--change 'CMD ["bash"]')
fi
docker -H "$ENGINE" import "${change[@]}" "$work/root.tar" "$IMAGE" 9<&-
