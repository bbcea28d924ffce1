"""The runtime can be imported by whoever serves the model, and nothing else has changed."""

ROOT = "/opt/llama_cpp"


def test_any_user_can_import_it(host):
    python = "cd / && setpriv --reuid 1000 --regid 100 --clear-groups python3 -B -c"
    assert host.check_output(f"{python} 'import xllamacpp as x; print(x.__file__)'") == f"{ROOT}/xllamacpp/__init__.py"


def test_it_loads_no_library_that_is_missing(host):
    assert "not found" not in host.check_output(f"ldd {ROOT}/xllamacpp/xllamacpp.abi3.so")


def test_its_files_are_what_the_wheel_lists(host):
    """RECORD has a hash for each file but itself."""
    script = (
        "import base64, csv, hashlib, pathlib; root = pathlib.Path('/opt/llama_cpp');"
        "rows = list(csv.reader(next(root.glob('*.dist-info/RECORD')).open()));"
        "digest = lambda p: base64.urlsafe_b64encode(hashlib.sha256(p.read_bytes()).digest()).decode().rstrip('=');"
        "assert all(d == '' or d == 'sha256=' + digest(root / p) for p, d, _ in rows);"
        "assert {p for p, _, _ in rows} == {str(p.relative_to(root)) for p in root.rglob('*') if p.is_file()};"
        "print(len(rows))"
    )
    assert int(host.check_output(f'python3 -B -c "{script}"')) > 5


def test_it_is_root_s_and_read_only_for_others(host):
    assert host.check_output(f"find {ROOT} \\( ! -user root -o -perm /022 -o ! -perm -044 \\)") == ""


def test_no_pip_came_with_it(host):
    assert host.run("python3 -B -c 'import pip'").rc != 0
    assert not host.package("python3-apt").is_installed


def test_it_leaves_no_trace(host):
    assert host.check_output("find /var/lib/apt/lists /var/cache/apt -type f ! -name lock") == ""
    traces = "-name '*.whl' -o -name 'llama_cpp.*' ! -name llama_cpp.pth -o -name llama_cpp.new"
    assert host.check_output(f"find / -path /proc -prune -o \\( {traces} \\) -print") == ""
