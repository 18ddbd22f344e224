"""`hastore config init` writes a file that its node accepts, and never over another one."""

import tomllib

import pytest

from hastore_cli.config_files.sample import sample
from hastore_cli.settings.settings import PLACES
from tests.support.commands.in_process import hastore_here

ROLES = ("master", "slave", "node")


@pytest.mark.parametrize("role", ROLES)
def test_a_node_accepts_what_was_written(run, tmp_path, role):
    """Each value that is no default is from the file, and needs no other flag."""
    file = tmp_path / "hastore.toml"
    code, shown, told = run("config", "init", "--role", role, file)
    assert (code, shown) == (0, f"{file}\n")
    assert f"hastore {role} -c {file} --check-config" in told
    code, shown, told = run(role, "-c", file, "--check-config")
    assert code == 0, told
    assert f"# {file}" in shown


@pytest.mark.parametrize("role", ROLES)
def test_every_key_is_there_and_every_default_is_right(run, tmp_path, role):
    """Without the comments' marks the configuration is the same."""
    text = sample(role)
    keys = {line.removeprefix("# ").split(" =")[0] for line in text.splitlines() if " =" in line}
    assert {setting.key for setting in PLACES[role]} <= keys
    plain, full = tmp_path / "plain.toml", tmp_path / "full.toml"
    plain.write_text(text)
    lines = [
        line.removeprefix("# ") if " = " in line and line[-1] != " " else line
        for line in text.splitlines()
    ]
    lines = [line for line in lines if not line.startswith(("hastore ", "A key"))]
    full.write_text("\n".join(lines))
    assert len(tomllib.loads(full.read_text())["store"]) > 30

    def values(file):
        code, shown, told = run(role, "-c", file, "--check-config")
        assert code == 0, told
        return [line.partition("#")[0].rstrip() for line in shown.splitlines()]

    assert values(plain) == values(full)


def test_what_is_given_is_in_the_file(run, tmp_path):
    """In place of the examples."""
    file = tmp_path / "n.toml"
    flags = ("--data", "/d", "--node-id", "7", "--node-group", "orders", "--group-ids", "7,8")
    flags = (*flags, "--etcd", "http://e1:2379,http://e2:2379")
    flags = (*flags, "--listen", "0.0.0.0:10921", "--ha-listen", "0.0.0.0:10922")
    code, _, told = run("config", "init", "--role", "node", *flags, "--advertise", "n7", file)
    assert code == 0, told
    table = tomllib.loads(file.read_text())
    assert table["node"] == {"data": "/d", "id": 7, "group": "orders", "group_ids": "7,8"}
    assert table["listen"] == {"client": "0.0.0.0:10921", "ha": "0.0.0.0:10922"}
    assert table["cluster"]["etcd"] == "http://e1:2379,http://e2:2379"
    assert table["cluster"]["advertise"] == "n7"
    code, _, told = run("node", "-c", file, "--check-config")
    assert code == 0, told


def test_no_file_is_written_whose_node_others_could_not_reach(run, tmp_path):
    """With an etcd on another machine the example's loopback ports are refused by their names."""
    flags = ("--role", "node", "--etcd", "http://e1:2379")
    for more, said in (
        ((), "[listen] ha (--ha-listen) is 127.0.0.1:10912"),
        (("--ha-listen", "10.0.0.7:10912"), "[listen] client (--listen) is 127.0.0.1:10911"),
        (("--advertise", "localhost"), "[cluster] advertise (--advertise) is localhost"),
        (("--ha-listen", "0.0.0.0:10912"), "[listen] ha (--ha-listen) is every address"),
    ):
        code, _, told = run("config", "init", *flags, *more, tmp_path / "n.toml")
        assert (code, said in told, "next" in told) == (2, True, True), told
    assert list(tmp_path.iterdir()) == []


def test_a_slave_has_a_client_port_only(run, tmp_path):
    """What a kind of node has no setting for is refused."""
    file = tmp_path / "s.toml"
    assert run("config", "init", "--role", "slave", "--listen", "10.0.0.7:10921", file)[0] == 0
    assert tomllib.loads(file.read_text())["listen"]["client"] == "10.0.0.7:10921"
    for role, flag, value in (
        ("slave", "--ha-listen", "10.0.0.7:10922"),
        ("slave", "--advertise", "n1"),
        ("master", "--advertise", "n1"),
    ):
        code, _, told = run("config", "init", "--role", role, flag, value, tmp_path / "x.toml")
        assert (code, f"{flag} is not for a {role}" in told) == (2, True), told


def test_a_file_that_exists_is_never_overwritten(run, tmp_path):
    """Nor is one written for a mistake."""
    file = tmp_path / "mine.toml"
    file.write_text("mine")
    code, _, told = run("config", "init", "--role", "master", file)
    assert (code, f"{file} exists, and was not changed" in told) == (6, True)
    assert file.read_text() == "mine"
    for arguments, code, said in (
        (("--role", "node", "--node-id", "x"), 2, "[node] id"),
        (("--role", "node", "--etcd", "e1:2379"), 2, "[cluster] etcd"),
        (("--role", "master", "--node-id", "1"), 2, "--node-id is not for a master"),
        ((), 2, "--role"),
    ):
        found, shown, told = run("config", "init", *arguments, tmp_path / "new.toml")
        assert (found, shown, said in told, "next" in told) == (code, "", True, True), told
    code, _, told = run("config", "init", "--role", "node", tmp_path / "none/x.toml")
    assert (code, "cannot write" in told) == (1, True)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.toml"]


def test_the_default_file_is_the_one_that_nodes_look_for(tmp_path):
    """In the current directory."""
    done = hastore_here("config", "init", "--role", "slave", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "hastore.toml\n"), done.stderr
    done = hastore_here("slave", "--check-config", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
