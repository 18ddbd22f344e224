"""The Containerfile: what it promises, and, where the tools are there, an image that runs."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.commands.running import command, environment
from tests.support.repository import REPO_ROOT

FILE = REPO_ROOT / "Containerfile"
PACKAGES = "python3,python3-venv,python3-dev,gcc,libc6-dev"
TOOLS = ("buildah", "mmdebstrap")


def instructions():
    """The instructions with their arguments, without comments, each in one line."""
    text = re.sub(r"^#.*\n", "", FILE.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [tuple(line.split(None, 1)) for line in text.splitlines() if line.strip()]


def arguments(name):
    """The arguments of all instructions of a name."""
    return [argument for each, argument in instructions() if each == name]


def test_the_image_has_no_root_one_volume_and_a_health_check():
    """And its base image is an argument, the same for both stages."""
    assert instructions()[0] == ("ARG", "BASE=python:3.11-slim-bookworm")
    assert [each.split()[0] for each in arguments("FROM")] == ["${BASE}", "${BASE}"]
    (user,) = arguments("USER")
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user)
    last = [name for name, _ in instructions()][-1::-1]
    assert last.index("USER") < last.index("RUN"), "nothing runs as that user before"
    assert arguments("VOLUME") == ["/var/lib/hastore"]
    (health,) = arguments("HEALTHCHECK")
    assert 'CMD ["hastore", "status", "/var/lib/hastore/data"]' in health
    assert arguments("STOPSIGNAL") == ["SIGTERM"]


def test_the_image_installs_what_the_locks_name():
    """With their hashes; hastore itself without anything else."""
    (run,) = [each for each in arguments("RUN") if "venv" in each]
    installs = [each.strip() for each in run.split("&&") if "pip install" in each]
    assert all("--no-deps" in each for each in installs)
    locks = [each for each in installs if "--require-hashes" in each]
    assert [each.split()[-1] for each in locks] == [
        "/src/requirements/run.lock",
        "/src/requirements/cluster.lock",
    ]
    assert all((REPO_ROOT / each.split()[-1].removeprefix("/src/")).is_file() for each in locks)
    assert installs[2:] == [installs[-1]]
    assert installs[-1].endswith("--no-build-isolation /src")


def test_a_master_accepts_the_images_environment(tmp_path):
    """Its settings have these names, and these values are ones that they can have."""
    (text,) = arguments("ENV")
    pairs = dict(pair.split("=", 1) for pair in text.split() if pair.startswith("HASTORE_"))
    done = subprocess.run(
        command("master", "--check-config"),
        env=environment(**pairs),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert all(f"# {name}" in done.stdout for name in pairs)
    assert "is not a setting" not in done.stderr


def run(*words, **options):
    """Run a tool to its end; fail with what it said."""
    done = subprocess.run(words, capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, (words, done.stdout[-2_000:], done.stderr[-2_000:])
    return done.stdout


@pytest.mark.soak
def test_the_image_is_built_and_runs_a_master(tmp_path):
    """On a base of Debian's packages; with this machine's pip configuration and certificates."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"not on PATH: {', '.join(missing)}")
    base, name = f"hastore-base-{os.getpid()}", f"hastore-test-{os.getpid()}"
    archive = tmp_path / "root.tar"
    run("mmdebstrap", "--variant=minbase", f"--include={PACKAGES}", "bookworm", str(archive))
    options = ["--isolation", "chroot", "--network", "host", "--format", "docker"]
    configuration = Path(os.environ.get("PIP_CONFIG_FILE", "/etc/pip.conf"))
    certificates = Path(os.environ.get("SSL_CERT_FILE", "/etc/ssl/certs/ca-certificates.crt"))
    for path, inside in ((configuration, "/etc/pip.conf"), (certificates, str(certificates))):
        if path.is_file():
            options += ["--volume", f"{path}:{inside}:ro"]
    scratch = run("buildah", "from", "scratch").strip()
    made = [scratch]
    try:
        run("buildah", "add", scratch, str(archive), "/")
        run("buildah", "commit", scratch, base)
        run("buildah", "build", *options, "--build-arg", f"BASE={base}", "-t", name, str(REPO_ROOT))
        config = json.loads(run("buildah", "inspect", "--type", "image", name))["Docker"]["config"]
        assert config["User"] == "10911:10911"
        assert list(config["Volumes"]) == ["/var/lib/hastore"]
        assert config["Healthcheck"]["Test"][1:] == ["hastore", "status", "/var/lib/hastore/data"]
        made.append(run("buildah", "from", name).strip())
        inside = ["buildah", "run", "--isolation", "chroot", made[-1], "--"]
        assert run(*inside, "id", "-u").strip() == "10911"
        assert "extension" in run(*inside, "hastore", "version")
        node = run(
            *inside, "sh", "-c",
            "hastore master --listen 127.0.0.1:0 --ha-listen 127.0.0.1:0 & node=$!;"
            " until hastore status /var/lib/hastore/data; do sleep 0.2; done;"
            " kill $node; wait $node; echo code $?",
        )  # fmt: skip
        assert node.splitlines()[-1] == "code 0"
    finally:
        for each in made:
            subprocess.run(["buildah", "rm", each], capture_output=True, check=False)
        for each in (name, base):
            subprocess.run(["buildah", "rmi", each], capture_output=True, check=False)
