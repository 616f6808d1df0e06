"""launch/slurm.sbatch on a real SLURM: whatever happens to a job, its run ends as the unbroken one.

`make test-slurm` installs what is needed.
"""

import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import psutil
import pytest
import yaml

from tests.data.shard_files import write_llmc
from tests.slurm.cluster import Cluster, await_that, running_cluster, why_not

ROOT = Path(__file__).parents[2]
SCRIPT = str(ROOT / "launch" / "slurm.sbatch")
STEPS = 150
START_S, RUN_S = 90, 240

pytestmark = [
    pytest.mark.long,
    pytest.mark.distributed,
    pytest.mark.timeout(600),
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]


class Jobs:
    """Submits runs of one configuration, two nodes each, and follows them."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder

    def submit(self, *words: str, options: tuple[str, ...] = (), **settings: str) -> str:
        """Return the number of a job that the script's words and sbatch's options make."""
        settings = {
            "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin:/usr/sbin",
            "PYTHONPATH": str(ROOT),
            "HF_HOME": str(self.folder / "huggingface"),
            "OMP_NUM_THREADS": "1",
            "STRATEGY": "ddp",
            "CONFIG": str(self.folder / "run.yaml"),
            "MAIN_ADDRESS": "127.0.0.1",
            "PROCESSES_PER_NODE": "1",
            "SBATCH_GPUS_PER_NODE": "0",
            "SBATCH_SIGNAL": "USR1@5",
            **settings,
        }
        place = ("--parsable", f"--chdir={self.folder}", "--time=30")
        return self.cluster.run("sbatch", *place, *options, SCRIPT, *words, **settings)

    def log(self, job: str) -> str:
        """Return what the job has printed so far."""
        path = self.folder / f"gpt2_{job}.log"
        return path.read_text() if path.exists() else ""

    def await_step(self, job: str, step: int) -> None:
        self._await(job, lambda: f" {step}/{STEPS} |" in self.log(job), START_S)

    def await_restart(self, job: str) -> None:
        self._await(job, lambda: self.cluster.state_of(job)["Restarts"] != "0", START_S)

    def await_end(self, job: str) -> str:
        """Wait until the job is over; return its state."""
        states: list[str] = []

        def is_over() -> bool:
            states.append(self.cluster.state_of(job)["JobState"])
            return states[-1] in ("COMPLETED", "FAILED", "TIMEOUT")

        self._await(job, is_over, RUN_S)
        return states[-1]

    def _await(self, job: str, is_so: Callable[[], object], limit_s: float) -> None:
        try:
            await_that(is_so, limit_s)
        except AssertionError as error:
            queue, nodes = (
                self.cluster.run(*each) for each in (("squeue",), ("sinfo", "-N", "-l"))
            )
            log = self.log(job)[-2000:]
            raise AssertionError(f"job {job}: {error}\n{queue}\n{nodes}\n{log}") from None

    def end_state(self, run: str) -> dict[str, str]:
        """Return the hash of every tensor file of the run's last checkpoint."""
        folder = self.folder / "runs" / run / "checkpoints" / f"step_{STEPS:08}"
        files = sorted(folder.glob("**/*.safetensors"))
        assert files, f"{folder} has no tensors"
        return {path.name: sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture(scope="module")
def jobs() -> Iterator[Jobs]:
    with tempfile.TemporaryDirectory(prefix="slurm-") as name:
        folder = Path(name)
        words = [(7 * i * i + 3 * i) % 500 for i in range(8000)]
        write_llmc(folder / "train" / "shard_000000.bin", words)
        run = {
            "model": {"n_layer": 4, "n_head": 2, "n_embd": 64, "block_size": 64, "vocab_size": 512},
            "data": {"train": str(folder / "train")},
            "batch": {"tokens_per_step": 2048, "micro_batch_size": 4},
            "output_dir": str(folder / "runs"),
            "training": {"steps": STEPS, "checkpoint_every": 10},
        }
        (folder / "run.yaml").write_text(yaml.safe_dump(run))
        (folder / "cluster").mkdir()
        with running_cluster(folder / "cluster", nodes=4) as cluster:
            yield Jobs(cluster, folder)


@pytest.fixture(scope="module")
def unbroken(jobs: Jobs) -> dict[str, str]:
    """The end of a run that nothing happens to, beside another job on the other two nodes."""
    one, other = (jobs.submit(f"run_name={name}") for name in ("unbroken", "beside"))
    assert [jobs.await_end(job) for job in (one, other)] == ["COMPLETED", "COMPLETED"]
    assert jobs.end_state("beside") == jobs.end_state("unbroken")
    return jobs.end_state("unbroken")


def ends_as(jobs: Jobs, job: str, run: str, unbroken: dict[str, str]) -> None:
    assert jobs.await_end(job) == "COMPLETED"
    assert int(jobs.cluster.state_of(job)["Restarts"]) >= 1
    assert jobs.end_state(run) == unbroken


def test_a_signal_saves_and_puts_the_job_back(jobs: Jobs, unbroken: dict[str, str]) -> None:
    job = jobs.submit("run_name=signal")
    jobs.await_step(job, 10)
    jobs.cluster.run("scancel", "--signal=USR1", job)
    ends_as(jobs, job, "signal", unbroken)
    assert "stopped by SIGUSR1" in jobs.log(job)


def test_the_time_limit_saves_and_puts_the_job_back(jobs: Jobs, unbroken: dict[str, str]) -> None:
    """SLURM's least is a minute, and it looks every 30 s: the signal comes after 5 to 35 s."""
    job = jobs.submit("run_name=limit", SBATCH_SIGNAL="USR1@25", options=("--time=1",))
    ends_as(jobs, job, "limit", unbroken)
    assert "stopped by SIGUSR1" in jobs.log(job)


def test_a_requeue_from_outside_loses_nothing(jobs: Jobs, unbroken: dict[str, str]) -> None:
    job = jobs.submit("run_name=requeue")
    jobs.await_step(job, 10)
    jobs.cluster.run("scontrol", "requeue", job)
    ends_as(jobs, job, "requeue", unbroken)


def test_preemption_loses_nothing(jobs: Jobs, unbroken: dict[str, str]) -> None:
    job = jobs.submit("run_name=preempted")
    jobs.await_step(job, 10)
    urgent = jobs.cluster.run(
        *(
            "sbatch",
            "--parsable",
            "--partition=urgent",
            "--nodes=4",
            "--exclusive",
            "--wrap=sleep 1",
        ),
        *("--output=/dev/null",),
    )
    jobs.await_restart(job)
    assert jobs.await_end(urgent) == "COMPLETED"
    ends_as(jobs, job, "preempted", unbroken)


def test_the_loss_of_a_machine_brings_the_job_back(jobs: Jobs, unbroken: dict[str, str]) -> None:
    job = jobs.submit("run_name=node")
    jobs.await_step(job, 20)
    lost = jobs.cluster.run("scontrol", "show", "hostnames", jobs.cluster.state_of(job)["NodeList"])
    name = lost.splitlines()[-1]
    jobs.cluster.kill_node(name)
    jobs.await_restart(job)
    jobs.cluster.revive_node(name)
    ends_as(jobs, job, "node", unbroken)


def test_a_job_goes_back_so_often_and_no_oftener(jobs: Jobs) -> None:
    job = jobs.submit("run_name=once", MAX_REQUEUES="0")
    jobs.await_step(job, 10)
    jobs.cluster.run("scancel", "--signal=USR1", job)
    assert jobs.await_end(job) == "FAILED"
    assert jobs.cluster.state_of(job)["ExitCode"] == "75:0"
    assert "which is MAX_REQUEUES; the state is saved" in jobs.log(job)


@pytest.mark.parametrize(
    ("words", "settings", "sentence"),
    [
        (["model.n_layer=0"], {}, "model.n_layer"),
        ([], {"CONFIG": "nowhere.yaml"}, "error: CONFIG=nowhere.yaml is not a file in"),
        ([], {"STRATEGY": "zero4"}, "error: STRATEGY=zero4 has no launch file"),
        ([], {"RUNS": "nowhere.txt"}, "error: RUNS=nowhere.txt is not a file in"),
    ],
)
def test_a_run_that_fails_does_not_come_back(
    jobs: Jobs, words: list[str], settings: dict[str, str], sentence: str
) -> None:
    job = jobs.submit(*words, **settings)
    assert jobs.await_end(job) == "FAILED"
    found = jobs.cluster.state_of(job)
    assert (found["ExitCode"], found["Restarts"]) == ("2:0", "0")
    assert sentence in jobs.log(job)
    assert "Traceback" not in jobs.log(job)


def test_an_array_is_a_sweep(jobs: Jobs) -> None:
    rates = ("1e-3", "5e-4")
    lines = [f"run_name=sweep{i} optimizer.lr={lr} training.steps=3" for i, lr in enumerate(rates)]
    runs = jobs.folder / "runs.txt"
    runs.write_text("\n".join(lines) + "\n")
    options = ("--array=1-2", "--nodes=1")
    array = jobs.submit(RUNS=str(runs), PROCESSES_PER_NODE="2", options=options)
    for task in ("1", "2"):
        assert jobs.await_end(f"{array}_{task}") == "COMPLETED"
    configs = [jobs.folder / "runs" / f"sweep{i}" / "config.yaml" for i in range(2)]
    found = [yaml.safe_load(path.read_text())["optimizer"]["lr"] for path in configs]
    assert found == [float(rate) for rate in rates]


def test_a_wrong_partition_is_named_before_there_is_a_job(jobs: Jobs) -> None:
    with pytest.raises(AssertionError, match="invalid partition specified: nowhere"):
        jobs.submit(options=("--partition=nowhere",))


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    with running_cluster(tmp_path, nodes=1) as cluster:
        job = cluster.run("sbatch", "--parsable", "--wrap=srun sleep 300", "--output=/dev/null")
        await_that(lambda: "sleep" in names_of_processes(cluster), 30)
        assert cluster.state_of(job)["JobState"] == "RUNNING"
    assert names_of_processes(cluster) == []


def names_of_processes(cluster: Cluster) -> list[str]:
    """Return what runs on this machine with the cluster's configuration."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("SLURM_CONF") == cluster.environment["SLURM_CONF"]:
                found.append(process.name())
    return found
