"""Run experiments: services, load, job, migration, verdict, result. The one way, for notebooks and command line."""

import contextlib
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from keyshift.driver.job import Job
from keyshift.driver.spark import idle_jvm, start_query, stop_spark
from keyshift.endpoints import Endpoints
from keyshift.experiment.live_spec import parameters, partitions, wanted_slots
from keyshift.experiment.spec import RunSpec
from keyshift.folders import require_disk_space, work_folder
from keyshift.lab.ending import RunEnd, all_of
from keyshift.lab.judge.evaluation import Evaluation, Span
from keyshift.lab.live.job import LiveJob
from keyshift.lab.machine import bare_copy
from keyshift.lab.machine import load_cost as costs
from keyshift.lab.machine.auto_load import DEFAULT, AutoLoad, chosen
from keyshift.lab.machine.sampler import Stretch
from keyshift.lab.recording import Recording
from keyshift.lab.replicas.jobs import Replicas
from keyshift.lab.replicas.spark import application_of
from keyshift.lab.replicas.system import LiveReplicas
from keyshift.lab.reporter import Reporter
from keyshift.lab.run_loop import MakeScript, RunLoop
from keyshift.lab.run_metrics import written
from keyshift.lab.scripts.scenario import scenario_script
from keyshift.lab.scripts.series import Series, as_stored, with_jobs
from keyshift.lab.service_faults import BesideRun, ServiceFaults, require_possible
from keyshift.lab.system import KeyshiftJob, SystemUnderTest, job_config, job_traffic, used_by_pods
from keyshift.model.errors import BadInput, KeyshiftError, ServiceUnavailable
from keyshift.place.profile import SparkProfile
from keyshift.place.session import PlacedSpark, spark_files
from keyshift.program import interrupts_wait
from keyshift.progress import Say
from keyshift.results.manifest import Manifest, new_run_id
from keyshift.results.store import ResultStore
from keyshift.runtime.protocol_log import LogEvent
from keyshift.services.stack import Stack
from keyshift.state import backends, clean_stores, settings_of
from keyshift.traffic.traffic import Traffic
from keyshift.wire.config import JobConfig
from keyshift.wire.faults import Fault
from keyshift.wire.savepoint import SavepointStore

ROOM_BYTES = 512 << 20  # of the state folder: results, savepoints and Spark's files of one run
PreparedRun = tuple[RunLoop, Callable[[], None]]  # a run, and what raises Deposed if another process drives its job


class Lab:
    """A Spark session and the services around it, for one or more runs. A context manager.

    ``cores``: logical cores of the session, the largest that any of the runs needs; 0 if all of them have replicas: no
    Spark is started, as each replica has one of its own. ``spark_profile``: the part of the profile about Spark.
    ``stack``: the services if they are ours, so that a run may have faults of them. ``work``: temporary files, but for
    Spark's, inside.
    """

    def __init__(
        self,
        endpoints: Endpoints,
        jars: list[Path],
        home: Path,
        cores: int,
        say: Say,
        spark_profile: SparkProfile | None = None,
        stack: Stack | None = None,
    ) -> None:
        self._endpoints, self._jars, self._home, self.say = endpoints, jars, home, say
        self._cores, self._spark_profile, self._stack = cores, spark_profile or SparkProfile(), stack
        self.store = ResultStore(endpoints)
        self._spark: PlacedSpark | None = None
        self._live: LiveJob | None = None
        self._load_cost: costs.LoadCost | None = None  # as soon as it is known

    def __enter__(self) -> "Lab":
        self.store.list_runs(limit=1)  # wrong credentials and missing buckets show now, not after the run
        require_disk_space(self._home, ROOM_BYTES, "name another folder with KEYSHIFT_HOME")
        with contextlib.ExitStack() as stack:
            self.work = stack.enter_context(work_folder(self._home, "spark-"))
            if self._cores:
                given = self._cores, self._jars, spark_files(self._home), self._home / "spark.log", self.say
                self._spark = PlacedSpark(self._spark_profile, *given)
                stack.callback(stop_spark, self._spark.session)
                self._spark.await_executors()
            self._copy_bytes_per_s = bare_copy.bytes_per_s(self._home / "bare_copy.json")
            self._closing = stack.pop_all()
        return self

    def _await_executors(self, traffic: Traffic) -> None:
        if self._spark is not None:  # replicas await their own
            self._spark.await_executors(traffic.require_wanted)

    def __exit__(self, *_: object) -> None:
        with interrupts_wait(), self._closing:
            if self._live is not None:
                self._live.give_up()

    def load_cost(self, again: bool = False) -> costs.LoadCost:
        """Return what a load costs on this machine: kept in the state folder, else (or ``again``) measured now.

        That takes about twenty seconds. What is measured while others take much is for this lab only. Executors have
        to be on this machine, too. Raises KeyshiftError if that job dies.
        """
        known = None if again else self._load_cost or costs.kept_cost(self._home)
        self._load_cost = cost = known or self._measure_load_cost()
        if known is None and cost.disturbed:
            self.say(
                f"others had {cost.others:.0%} of the processors meanwhile, so this may be wrong and is not kept; "
                "`keyshift calibrate` when nothing else runs here"
            )
        elif known is None:
            costs.keep(cost, self._home)
        return cost

    def _measure_load_cost(self) -> costs.LoadCost:
        self.say("measuring what a load costs on this machine, for later runs, too")
        spec, parts = costs.cost_spec(), list[Stretch]()
        name = new_run_id(spec.workload.name, "cost")
        with self._prepared(spec, name, [], partial(costs.cost_script, parts), RunEnd()) as (run, _):
            run.run()
            _, frames = run.traffic.offered()
        return costs.cost_of(parts, frames)

    def settled(self, specs: Sequence[RunSpec]) -> list[RunSpec]:
        """``specs`` with one load for all that left it to the machine (``rate=auto``, ``frame_ms=auto``); it is told.

        Where executors run elsewhere, nothing is measured, and it is the default. Raises as ``load_cost``.
        """
        if not (open_ones := [spec for spec in specs if spec.unsettled]):
            return list(specs)
        if self._spark_profile.on_kubernetes:
            load = AutoLoad(DEFAULT.rate, DEFAULT.frame_ms, math.nan)
            self.say(f"auto: the defaults, as executors at {self._spark_profile.master} are not measured")
        else:
            cost = self.load_cost()
            load = chosen(open_ones, cost)
            self.say(load.words(cost))
        return [spec.settled(rate=load.rate, frame_ms=load.frame_ms) for spec in specs]

    def run(self, spec: RunSpec, make_script: MakeScript = scenario_script) -> Manifest:
        """Make one run, and store it whatever its verdict. Raises KeyshiftError if it died; then a manifest says so."""
        [spec] = self.settled([spec])
        require_possible(spec.scenario.every_fault(), self._stack, self._spark_profile)
        return self.record(spec, new_run_id(spec.workload.name, spec.strategy.name), make_script)

    def start(self, spec: RunSpec, on_end: Callable[[], None] = lambda: None) -> LiveJob:
        """Start a job that runs until it is stopped; returns as soon as events go in. There may be one at a time. It
        keeps no journal, and ends with the lab at the latest: nothing is left of it, and nothing can go on with it.

        ``on_end``: called when it has ended. Raises BadInput if one runs already, KeyshiftError if it does not start.
        """
        if self._live is not None and not self._live.ended.is_set():
            raise BadInput(f"job {self._live.run_id} runs in this lab: stop it before another one is started")
        [spec] = self.settled([spec])
        self._live = job = LiveJob(self.record, spec, on_end)
        job.restart_slots = self.restart_slots(spec)
        threading.Thread(target=job.keep, name="keyshift-job", daemon=True).start()
        try:
            job.await_ready()
        except BaseException:  # Ctrl-C, too: nobody else has it
            with interrupts_wait():
                job.give_up()
            raise
        return job

    def require_snapshots(self, spec: RunSpec, job: str, names: Iterable[str]) -> None:
        """Raise BadInput if snapshots of a ``job`` are not of the job of ``spec``, or of another keyshift. One that is
        damaged or missing is no reason: the job goes on from another one.
        """
        store = SavepointStore(self._endpoints, job)
        for name in names:
            with contextlib.suppress(ServiceUnavailable):
                store.require_of(name, spec.workload)

    def restart_slots(self, spec: RunSpec) -> dict[str, int]:
        """Compute how many slots of each stage a restart of the job of ``spec`` may lead to, all stages alike: as many
        of the ``wanted_slots`` as there are cores for, since all routers and slots need one at once.
        """
        spark = self._spark_profile
        cores = spark.executors * spark.cores if spark.on_kubernetes else self._cores
        each = max(0, cores - spec.cores) // len(spec.tasks)
        return {stage: max(tasks, min(wanted_slots(spec), tasks + each)) for stage, tasks in spec.tasks.items()}

    def record(self, spec: RunSpec, run_id: str, make_script: MakeScript, end: RunEnd | None = None) -> Manifest:
        """Make a run of this script, and store it. ``end``: how it may end, if not with nothing left behind."""
        told = parameters(spec) if spec.lasts else spec.parameters()
        recording = Recording(self.store, self.say, spec, run_id, told, self._copy_bytes_per_s)
        log, end = list[LogEvent](), end or RunEnd()
        try:
            with self._prepared(spec, run_id, log, make_script, end) as (run, require_driver):
                evaluation = run.execute()
                with contextlib.suppress(ServiceUnavailable):
                    require_driver()
                return recording.ended(evaluation, log)
        except BaseException as error:
            if end.decide(error).over:  # else it is to be stored when it is
                recording.died(end.error or error, log)
            raise

    def run_series(self, job: RunSpec, specs: Sequence[RunSpec]) -> Iterator[Manifest]:
        """Make a run of each of ``specs``, laps of one ``job``; see ``series``. Each is stored when it is taken.

        Raises KeyshiftError if the job died: then nothing is known of any of them.
        """
        name, log = new_run_id(job.workload.name, "series"), list[LogEvent]()
        self.say(f"one job for {_counted(specs)}: {name}")
        series = Series(specs)
        with self._prepared(job, name, log, series.script, RunEnd()) as (run, _):
            run.run()
            laps = series.evaluations()
        return (self._store_lap(spec, *lap, log) for spec, lap in zip(as_stored(job, specs), laps, strict=True))

    def _store_lap(self, spec: RunSpec, span: Span, evaluation: Evaluation, log: list[LogEvent]) -> Manifest:
        begun, ended = (datetime.fromtimestamp(moment, UTC) for moment in (span.start, span.end))
        run_id = new_run_id(spec.workload.name, spec.strategy.name, begun)
        given = self.store, self.say, spec, run_id, spec.parameters(), self._copy_bytes_per_s
        return Recording(*given, (begun, ended)).ended(evaluation, log)

    @contextlib.contextmanager
    def _prepared(
        self, spec: RunSpec, run_id: str, log: list[LogEvent], make_script: MakeScript, end: RunEnd
    ) -> Iterator[PreparedRun]:
        """Prepare a run. ``log`` gets its last protocol events, ``end`` decides what is left behind."""
        chosen = settings_of(spec.backend.name, spec.backend.settings, self._endpoints.redis)
        folder = None if self._spark_profile.on_kubernetes else self.work
        with backends.get(spec.backend.name).served(chosen, run_id, folder) as settings:
            config = job_config(spec, run_id, self._endpoints, self._spark_profile.certificate(), settings)
            with self._around(spec, config, log, make_script, end) as run:
                yield run

    @contextlib.contextmanager
    def _around(
        self, spec: RunSpec, config: JobConfig, log: list[LogEvent], make_script: MakeScript, end: RunEnd
    ) -> Iterator[PreparedRun]:
        reporter, several = Reporter(self.say), spec.job.replicas > 1
        configs = [config.of_replica(number) for number in range(spec.job.replicas)] if several else [config]
        results = partitions(spec) if spec.lasts else [*spec.tasks.values()][-1]  # for as many slots
        traffic = job_traffic(spec.workload, config, results, self.work, reporter.second, configs)
        faults = spec.scenario.every_fault()
        services = self._faults(lambda line: system.note(line), several, faults)
        for fault in faults:
            services.require(fault)
        job: Job | Replicas
        system: SystemUnderTest
        if several:
            application = partial(application_of, self._spark_profile, spec.cores, self._jars, self.work, self._home)
            given = self.work, traffic, reporter.enter, services, log
            job = Replicas(spec, configs, application, *given)
            system = LiveReplicas(spec, job, self.say)
        else:
            assert self._spark is not None
            begin = partial(start_query, self._spark.session)
            job = Job(begin, config, self.work, spec.job.batch_s, traffic, reporter.enter, services)
            job.log = log
            system = KeyshiftJob(spec, job)
        ended_by: BaseException | None = None
        try:
            run = RunLoop(spec, system, traffic, reporter, partial(self._await_executors, traffic), make_script)
            run.cut_faults_short = services.cut_short
            if not end.outlives:  # a job in the background is asked itself
                run.metrics = partial(written, config.job, run, self._home)
            if self._stack is not None:
                run.services = self._stack.pids
            if isinstance(job, Replicas):
                run.parts, pids = job.parts, run.services
                run.services = lambda: {**pids(), **idle_jvm()}  # the lab has a Spark if other runs of it need one
            if self._spark_profile.on_kubernetes:
                run.pods = partial(used_by_pods, job.jobs if isinstance(job, Replicas) else lambda: [job])
            yield run, job.require_driver
        except BaseException as error:
            ended_by = error
            if isinstance(error, Exception):
                with contextlib.suppress(ServiceUnavailable):  # its own error is the news, unless this is the reason
                    job.require_driver()
                job.read_log()
            raise
        finally:
            with interrupts_wait():
                all_of({"faults": services.close, "query": job.stop, "generator and collector": traffic.kill}, self.say)
                if end.of(ended_by).over:  # nobody goes on with it then
                    end.undeleted = all_of({"claim": job.end}, self.say)
                # Without the claim what may outlive us could be another one's; of a run nobody else can have anything.
                if end.decide(ended_by).over and not (end.undeleted and end.outlives):
                    steps = {"topics": traffic.close, "nodes and snapshots": job.clean}
                    backend = spec.backend.name, spec.backend.settings, self._endpoints.redis
                    for each in configs:
                        stores: Callable[[], None] = partial(clean_stores, *backend, each.job)
                        steps |= {f"stores of {each.job}" if several else "stores": stores}
                    end.undeleted += all_of(steps, self.say)
                    end.deleted = not end.undeleted

    def _faults(self, note: Say, several: bool, faults: Sequence[Fault]) -> BesideRun:
        """Choose who carries out faults of services, and of executors that are pods; replicas delete their own."""
        if not self._spark_profile.on_kubernetes:
            return ServiceFaults(self._stack, self._spark_profile, note, faults)
        from keyshift.lab.pod_faults import PodFaults  # imports what half of each command would need to begin
        from keyshift.place.pods import ExecutorPods

        pods = ExecutorPods(self._spark_profile, self._spark.application) if self._spark and not several else None
        return PodFaults(self._endpoints, self._spark_profile, pods, note)


OnFailure = Callable[[RunSpec, KeyshiftError], None]


def run_all(lab: Lab, specs: Sequence[RunSpec], failed: OnFailure | None = None) -> Iterator[Manifest]:
    """Run every spec, each as often as its ``repetitions`` say, the strategies in turn so that drift hits all alike.

    ``failed``: gets a run that died, and why, and the others go on. Raises KeyshiftError without it.
    """
    return (manifest for _, manifest in run_each(lab, specs, failed))


def run_each(lab: Lab, specs: Sequence[RunSpec], failed: OnFailure | None = None) -> Iterator[tuple[RunSpec, Manifest]]:
    """As ``run_all``, but give each run with the one of ``specs`` that it repeats."""
    for repetition, spec in _rounds(lab.settled(specs)):
        try:
            yield spec, lab.run(spec.repeated(repetition))
        except KeyshiftError as error:
            if failed is None:
                raise
            failed(spec, error)


def run_in_one_job(
    lab: Lab, specs: Sequence[RunSpec], failed: OnFailure | None = None
) -> Iterator[tuple[RunSpec, Manifest]]:
    """As ``run_each``, but runs that differ in strategy, trigger or measured time only are migrations of one job.

    Repetitions are further rounds of that job, with the same seed. A run that shares its job with no other one is made
    likewise, behind one for practice, if others share theirs: it is compared with them. Runs that cannot be migrations
    of one job are made one by one, as are those of a job that died. Runs come in the order in which they are made.
    Raises KeyshiftError if runs of one job cannot be stored.
    """
    for some, job in with_jobs(lab.settled(specs)):
        if job is not None:
            rounds = [spec for _, spec in _rounds(some)]
            try:
                made = lab.run_series(job, rounds)
            except KeyshiftError as error:
                lab.say(f"the job of {_counted(rounds)} died, so each gets one of its own: {error}")
            else:  # if the store fails, they must not be made again: some are stored already
                yield from zip(rounds, list(made), strict=True)
                continue
        yield from run_each(lab, some, failed)


def _counted(runs: Sequence[RunSpec]) -> str:
    return "a run" if len(runs) == 1 else f"{len(runs)} runs"


def _rounds(specs: Sequence[RunSpec]) -> list[tuple[int, RunSpec]]:
    """Each of ``specs`` as often as its ``repetitions`` say, in turn, behind the number of the repetition."""
    most = max(spec.run.repetitions for spec in specs)
    return [(number, spec) for number in range(most) for spec in specs if number < spec.run.repetitions]
