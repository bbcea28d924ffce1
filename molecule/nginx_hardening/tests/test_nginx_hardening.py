"""What the role leaves on the system: a configuration nginx accepts, nobody else's to write, and no running service."""

import re


def test_the_configuration_is_accepted_and_root_s(host):
    conf = host.file("/etc/nginx/nginx.conf")
    assert (conf.user, conf.group, conf.mode) == ("root", "root", 0o644)
    assert host.run("/opt/modelarts-engine/bin/proxy validate /etc/nginx/nginx.conf").rc == 0


def test_a_wrong_configuration_is_found_by_the_test(host):
    host.run("sed 's/sendfile on/sendfile perhaps/' /etc/nginx/nginx.conf >/tmp/wrong.conf")
    result = host.run("/opt/modelarts-engine/bin/proxy validate /tmp/wrong.conf")
    assert result.rc != 0
    assert "sendfile" in result.stderr


def test_all_that_nginx_writes_is_in_the_user_s_folder(host):
    text = host.file("/etc/nginx/nginx.conf").content_string
    paths = re.findall(r"(?:pid|_temp_path) (\S+);", text)
    assert len(paths) == 6
    assert all(path.startswith("/home/ma-user/.serving/") for path in paths)


def test_nothing_was_started_and_no_other_site_is_there(host):
    assert host.check_output("cat /proc/[0-9]*/comm | grep -c nginx; true") == "0"
    assert not host.file("/etc/nginx/sites-enabled/default").exists
    assert not host.file("/usr/sbin/policy-rc.d").exists


def test_no_trace_of_the_installation(host):
    assert host.check_output("find /var/lib/apt/lists /var/cache/apt -type f ! -name lock 2>/dev/null; true") == ""
    assert host.check_output("find /tmp -maxdepth 1 -name 'tmp.*'") == ""
