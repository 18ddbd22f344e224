"""Every job runs on a real cluster: a master and two workers, as processes of this machine."""

import contextlib
import json
import os
import random
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

import pyspark

from hastore.pipeline.spark.java_home import find_java_home
from tests.patience import PROCESS_WITHIN_S
from tests.pipeline.damaged_stores import Damager, copy_store
from tests.pipeline.rpo_worlds import RpoWorld
from tests.support.repository import REPO_ROOT
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3_600), pytest.mark.xdist_group("spark")]
READY_WITHIN_S = PROCESS_WITHIN_S
LOG4J = """
rootLogger.level = info
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %m%n
"""


class Daemon:
    """A process of Spark's standalone cluster."""

    def __init__(self, folder, name, *arguments):
        conf = folder / "conf"
        conf.mkdir(exist_ok=True)
        (conf / "log4j2.properties").write_text(LOG4J)
        self.log = folder / f"{name}.log"
        environment = {
            **os.environ,
            "JAVA_HOME": find_java_home(),
            "SPARK_CONF_DIR": str(conf),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_LOCAL_DIRS": str(folder / "scratch"),
        }
        script = Path(pyspark.__file__).parent / "bin" / "spark-class"
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                [script, *arguments], stdout=output, stderr=output, env=environment, cwd=folder
            )

    def wait_for(self, pattern):
        """Wait until the log matches a pattern, and return the match."""

        def found():
            assert self.process.poll() is None, self.log.read_text()
            return re.search(pattern, self.log.read_text())

        wait_until(found, self.log.read_text, within_s=READY_WITHIN_S, every_s=0.1)
        return found()

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(PROCESS_WITHIN_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@pytest.fixture
def cluster(tmp_path_factory):
    """Start a master with two workers on the loopback, and yield its URL."""
    folder = tmp_path_factory.mktemp("cluster")
    package = "org.apache.spark.deploy"
    ports = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    with contextlib.ExitStack() as running:
        master = Daemon(folder, "master", f"{package}.master.Master", *ports)
        running.callback(master.stop)
        url = master.wait_for(r"Starting Spark master at (spark://\S+)")[1]
        for number in range(2):
            work = ("--cores", "1", "--memory", "700m", "--work-dir", str(folder / f"w{number}"))
            worker = Daemon(
                folder, f"worker{number}", f"{package}.worker.Worker", *ports, *work, url
            )
            running.callback(worker.stop)
            worker.wait_for("Successfully registered with master")
        yield url


@pytest.fixture
def job_input(golden, tmp_path):
    """Write the input of the jobs: a store, a damaged copy, a history and a surviving log."""
    folder = tmp_path / "given"
    folder.mkdir()
    copy_store(golden / "clean", folder / "clean")
    other = copy_store(golden / "clean", folder / "other")
    for how in ("log_byte", "unit_byte", "index_byte", "filler"):
        Damager(7).damage(other, how)
    with (folder / "history.jsonl").open("w") as sink:
        world = RpoWorld(random.Random(7), puts=300, sink=sink, trouble=0.1)
    world.write_logs(folder / "logs")
    (folder / "survivor").symlink_to(folder / "logs" / min(world.logs))
    return folder


def run_every_job(master, job_input, out):
    """Return the printed results, and the seconds that they took."""
    begun = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "tests.pipeline.every_job", master, job_input, out],
        cwd=REPO_ROOT,
        env={name: value for name, value in os.environ.items() if not name.startswith("SPARK_")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4_000:]
    print(f"{master}:", ", ".join(done.stderr.splitlines()))
    out.with_suffix(".json").write_text(done.stdout)  # to compare by hand if they differ
    return json.loads(done.stdout), time.monotonic() - begun


def test_every_job_has_the_same_results_on_a_cluster(cluster, job_input, tmp_path):
    """Rows, counts and bytes of files from two executors equal those from local[2]."""
    local, local_s = run_every_job("local[2]", job_input, tmp_path / "local")
    spread, spread_s = run_every_job(cluster, job_input, tmp_path / "cluster")
    print(f"local[2] {local_s:.0f} s, two workers {spread_s:.0f} s")
    assert (local.pop("executors"), spread.pop("executors")) == (0, 2)
    assert len(local["files"]) > 30
    assert len(local["tables"]) >= 5
    different = {
        (part, name)
        for part in ("files", "tables", "jobs")
        for name in local[part].keys() | spread[part].keys()
        if without_times(local[part].get(name)) != without_times(spread[part].get(name))
    }
    assert not different, (local, spread)


def without_times(found):
    """Replace the times in the names of new index files."""
    return re.sub(r"\b20\d{15}\b", "TIME", json.dumps(found))
