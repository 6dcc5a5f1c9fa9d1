"""A job with replicas as the system under test: who dies is gone, and the others go on."""

import threading
import time
from types import SimpleNamespace

import pytest
from small_live import Way

from keyshift.experiment.scenario import ScaleTo
from keyshift.experiment.spec import make_spec
from keyshift.lab.judge.evaluation import NEVER_DIED
from keyshift.lab.judge.final_state import FinalState
from keyshift.lab.replicas import requests, returning, system
from keyshift.lab.replicas.system import LiveReplicas
from keyshift.model.errors import BadInput, KeyshiftError, MigrationFailed, QueryDied, ServiceUnavailable
from keyshift.model.keys import Assignment
from keyshift.model.notes import Note, NoteKind
from keyshift.traffic.copies import Standing
from keyshift.waiting import wait_until
from keyshift.wire import nodes
from keyshift.wire.faults import parse

REPLICATED = {"replicas": 3, "ordering": "live_robin"}
START = Assignment.contiguous(4, 2)


class Replica:
    """Its application, its job and its system; ``dies`` is what they raise."""

    def __init__(self, number, offset):
        self.number, self.offset, self.lives, self.dies, self.killed, self.did = number, offset, True, None, 0, []
        self.application = self.system = self
        participant = SimpleNamespace(read=lambda node: f"{node.path} of {number}:4000", children=self.children)
        self.queues = {0: [0, 1, 2], 1: [0, 1, 2]}  # by slot: who stands for election, the leader first
        stages = [SimpleNamespace(participant=participant, name="counter", log=None, assignment=START)]
        self.job = SimpleNamespace(config=SimpleNamespace(attempt=0, shared="run", token="secret"), stages=stages)
        self.began, self.deaths, self.isActive, self.notes = NEVER_DIED, 0, True, []
        self.owners, self.busy, self.epoch = {"counter": {number}}, False, 77
        self.plans = self  # nothing else makes it busy

    def __getattr__(self, name):
        if name not in ("start", "check", "stop", "stop_at", "hit", "announce", "request"):
            raise AttributeError(name)

        def do(*given, **named):
            self.did.append((name, *given, *named.values()))
            if self.dies:
                raise self.dies
            return self.epoch if name == "stop_at" else None

        return do

    def children(self, folder):
        stands = {nodes.of_order("counter", slot): queue for slot, queue in self.queues.items()}
        path = folder.path.removeprefix(f"{nodes.of_job('run')}/").removesuffix("/election")
        return [f"{number}-beef-{place:010}" for place, number in enumerate(stands.get(path, ()), 9)]

    def comes_back(self):
        self.lives, self.dies, self.isActive = True, None, True

    def pause(self, seconds):
        self.did.append(("pause", seconds))

    def delete_executor(self, host):
        self.did.append(f"the executor at {host} goes")
        self.dies = QueryDied("an executor was lost")

    def kill(self):
        self.killed += 1
        self.isActive = False
        self.dies = QueryDied("the process of the replica is gone")

    def measure(self, *_):
        return {"counter": {self.number: None}}

    def final_state(self):
        return FinalState({0: self.offset, 1: 5}, lambda timers, units: iter(()), [], (), [])


@pytest.fixture
def made(monkeypatch):
    """A job of three; the second one has come furthest."""
    monkeypatch.setattr(returning, "Return", Way)
    monkeypatch.setattr(returning, "LOOK_S", 0.001)
    Way.begun.clear()

    def make(fault="", **values):
        spec, said, kept = make_spec(REPLICATED | {"fault": fault} | values), [], []
        every = [Replica(number, offset) for number, offset in enumerate((7, 9, 8))]
        applications, log = [], SimpleNamespace(records=lambda: []) if spec.job.ordering == "kazoo" else None

        class Replicas:
            all, differences, order, struck, standings, before_stop = every, [], log, [], {}, []
            living = property(lambda self: [each for each in every if each.lives])
            begin = staticmethod(lambda: applications.append(True))
            spares = SimpleNamespace(fill=lambda: applications.append("spare"))
            say = staticmethod(lambda given: None)
            keep_log = staticmethod(lambda: kept.append([each.number for each in every if ("stop",) in each.did]))
            services = SimpleNamespace(require=say)
            comes_back = staticmethod(Replica.comes_back)

        job, differences = LiveReplicas(spec, Replicas(), said.append), Replicas.differences
        lists = {"kept": kept, "differences": differences, "struck": Replicas.struck, "standings": Replicas.standings}
        return SimpleNamespace(system=job, every=every, said=said, begun=applications, ways=Way.begun, **lists)

    return make


@pytest.mark.parametrize("error", [QueryDied("a worker is gone"), MigrationFailed("no answer")])
def test_who_dies_is_ended_and_told_of_once_and_the_others_go_on(made, error):
    job = made()
    job.every[0].dies = error
    for _ in range(3):
        job.system.check()
    assert [each.lives for each in job.every] == [False, True, True]
    assert job.every[0].killed == 1 and job.said == [f"replica 0 died ({error}); 2 of 3 went on"]
    assert job.system.notes == [Note(job.said[0], kind=NoteKind.DEATH)]
    assert job.system.owners == {"counter": {1}} and job.system.measure() == {"counter": {1: None}}
    job.system.stop()
    assert [each.did[-1] for each in job.every] == [("check",), ("stop",), ("stop",)]
    assert job.kept == [[1, 2]], "the log that the others have read as they stopped"


def test_all_that_live_stop_behind_the_same_epoch_and_if_not_that_is_told(made):
    job = made()
    job.every[0].dies = QueryDied("gone")
    job.system.check()
    job.system.stop()
    appointed = {did[1] for each in job.every[1:] for did in each.did if did[0] == "stop_at"}
    assert len(appointed) == 1 and appointed.pop() > 0
    assert [[did[0] for did in each.did[-2:]] for each in job.every[1:]] == [["stop_at", "stop"]] * 2
    assert not any("different epochs" in note for note in job.system.final_state().notes)
    job.every[2].epoch = 78
    job.system.stop()
    told = "replicas stopped behind different epochs, {1: 77, 2: 78}"
    assert sum(told in note for note in job.system.final_state().notes) == 1


def test_a_difference_is_told_while_the_job_runs_and_once(made):
    job = made()
    job.system.check()
    job.differences.append("replicas 0 and 1 differ")
    for _ in range(2):
        job.system.check()
    assert job.said == ["replicas 0 and 1 differ"] and all(each.lives for each in job.every)


def test_at_the_end_nobody_is_waited_for_and_who_dies_in_its_last_savepoint_is_no_loss(made):
    job = made()
    job.every[0].kill()
    job.system.check()
    job.every[1].dies = QueryDied("late")
    job.system.stop()
    [way] = job.ways
    assert way.over and job.begun == [], "and no spare application is started in place of the one that was taken"
    final = job.system.final_state()
    assert set(final.replicas) == {2} and final.offsets == {0: 8, 1: 5}


def test_when_the_last_one_has_died_the_run_ends_with_all_that_was_said(made):
    job = made()
    for each in job.every:
        each.dies = QueryDied(f"gone {each.number}")
    with pytest.raises(
        KeyshiftError, match=r"no replica is left: replica 0 died \(gone 0\).*replica 2 died \(gone 2"
    ) as ended:
        job.system.check()
    assert not isinstance(ended.value, QueryDied), "it is not started anew"


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize(
    ("ordering", "faults", "did", "lives", "struck"),
    [
        ("live_robin", "kill:replica@steady, kill:replica@4", ("check",), [False, False, True], ["kill replica"] * 2),
        ("live_robin", "kill:executor@4", "the executor at slots/0 of 0 goes", [False, True, True], ["kill executor"]),
        ("live_robin", "stop:replica@4:3s", ("pause", 3.0), [True] * 3, ["stop replica"]),
        ("live_robin", "restart:kafka@3", ("hit", *parse("restart:kafka@3")), [True] * 3, ["restart kafka"]),
        ("kazoo", "kill:follower@steady, kill:follower@4", ("check",), [True, False, False], ["kill follower"] * 2),
    ],
    ids=["killed", "an executor is deleted", "stopped for a while", "a service", "a follower: the one that came last"],
)
def test_the_first_replica_that_lives_is_hit_and_dies_unless_it_is_only_stopped(
    made, ordering, faults, did, lives, struck, at_once
):
    job = made(faults, ordering=ordering)
    for fault in parse(faults):
        job.system.hit(fault)
        if not at_once:
            job.system.check()
    job.system.check()
    assert job.every[0].did[0] == did and [each.lives for each in job.every] == lives
    final = job.system.final_state()
    assert [what for _, what in final.struck] == struck
    assert not any("did not happen" in note for note in final.notes)


@pytest.mark.parametrize(
    ("queues", "leads", "follows"),
    [
        ({0: [1, 2, 0], 1: [1, 0, 2]}, 1, 2),
        ({0: [2, 1, 0], 1: [2, 0, 1]}, 2, 1),
        ({0: [2, 0], 1: [1, 0]}, 1, 0),
        ({0: [0, 1, 2], 1: [2, 1, 0], 2: [2, 0, 1]}, 2, 1),
        ({}, 0, 2),
    ],
    ids=["the second leads", "the last", "two, as many slots each", "two, not as many", "nobody, between two batches"],
)
def test_who_leads_is_hit_as_replica_and_who_leads_nothing_as_follower(made, queues, leads, follows):
    values = {"ordering": "kazoo", "slots": 3, "key_groups": 6}
    for fault, number in (("kill:replica@4", leads), ("kill:follower@4", follows), ("stop:replica@4:3s", leads)):
        job = made(**values)
        for each in job.every:
            each.queues = queues
        job.system.hit(*parse(fault))
        hit = [each.number for each in job.every if each.killed or ("pause", 3.0) in each.did]
        assert hit == [number], fault


def test_who_leads_next_is_no_follower_though_the_session_of_the_dead_leader_lasts(made):
    job = made(ordering="kazoo")
    replica, follower = parse("kill:replica@4, kill:follower@4")
    for each in job.every:
        each.queues = {0: [0, 2, 1], 1: [0, 2, 1]}
    for fault in (replica, follower):
        job.system.hit(fault)
    assert [each.killed for each in job.every] == [1, 1, 0]


def test_a_follower_is_not_hit_if_each_replica_leads_a_slot(made):
    job = made(ordering="kazoo", slots=3, key_groups=6)
    for each in job.every:
        each.queues = {0: [2], 1: [0], 2: [1]}
    with pytest.raises(BadInput, match=r"^fault = kill:follower@4: each of the 3 replicas that live leads a slot"):
        job.system.hit(*parse("kill:follower@4"))
    assert not any(each.killed for each in job.every) and job.system.final_state().struck == []


def test_who_was_hit_and_dies_a_moment_later_is_not_hit_again_and_counts_as_dead(made, monkeypatch):
    job = made(ordering="kazoo")
    slot, follower = parse("kill:slot@4, kill:follower@4.2")
    for _ in range(2):
        job.system.hit(slot)
    assert [each.did for each in job.every] == [[("hit", slot)], [("hit", slot)], []]
    assert job.system.returning and all(each.isActive for each in job.every)
    for fault in (slot, follower):
        with pytest.raises(BadInput, match="1 of replicas = 3 lives, and none would be left"):
            job.system.hit(fault)
    with monkeypatch.context() as later:
        later.setattr(system, "DIES_WITHIN_S", 0.0)
        assert not job.system.returning, "there was nobody to be hit"
    job.every[0].job.config.attempt += 1  # it has come back
    job.system.hit(follower)
    assert [each.killed for each in job.every] == [0, 0, 1]


def test_a_fault_that_did_not_happen_is_told_and_what_was_taken_back_and_notes_say_of_which_replica_they_are(made):
    job = made("kill:replica@20")
    job.system.plans.notes.append(Note("a request was taken back"))
    for each in job.every:
        each.notes.append(Note(f"note of {each.number}"))
    job.every[2].lives = False
    final = job.system.final_state()
    assert final.notes == [
        "fault = kill:replica@20: kill:replica@20 did not happen",
        "a request was taken back",
        *(f"replica {number}: note of {number}" for number in range(3)),
    ]
    assert (final.replica, final.offsets) == (1, {0: 9, 1: 5}), "of the one that has come furthest"
    assert {number: state.offsets[0] for number, state in final.replicas.items()} == {0: 7, 1: 9}


def test_who_has_died_comes_back_and_it_is_known_how_many_were_full_when(made):
    job = made()
    job.system.start()
    assert not job.system.returning
    job.every[0].kill()
    assert job.system.returning, "from now on, as the next one to die must not be the other one"
    assert job.system.busy and not job.system.migrating
    job.system.check()
    [way] = job.ways
    assert way.replica is job.every[0] and job.system.busy
    way.replica.comes_back()
    job.system.check()
    assert job.system.returning, "it runs, and is not full"
    way.full()
    assert job.begun == [True]
    job.system.check()
    assert job.begun == [True, "spare"], "in place of the one that was taken"
    assert job.said[-1] == "replica 0 was full again" and not (job.system.busy or job.system.returning)
    final = job.system.final_state()
    assert [full for _, full in final.strength] == [3, 2, 3] and set(final.replicas) == {0, 1, 2}
    assert final.began == dict.fromkeys(range(3), NEVER_DIED)


def test_one_that_dies_again_comes_back_again_and_not_for_ever(made):
    job = made()
    for attempt in range(returning.MOST_RETURNS + 3):
        job.every[0].job.config.attempt = attempt
        job.every[0].kill()
        job.system.check()
        if len(job.ways) > attempt:
            job.every[0].comes_back()  # and dies before it is full
    assert len(job.ways) == returning.MOST_RETURNS and all(way.over for way in job.ways)


def on_its_way_back(made, ends):
    """A job whose first replica has died and needs no other one any more; when all others are dead its way ``ends``."""
    job = made()
    job.every[0].kill()
    job.system.check()
    [way] = job.ways
    way.begins_from = "run-r1", "capture-1"

    def end():
        if wait_until(lambda: any("0 of 3 went on" in line for line in job.said), 60, 0.001):
            ends(way)

    threading.Thread(target=end, daemon=True).start()
    return job


def test_the_death_of_all_others_is_none_if_one_is_on_its_way_back(made):
    job = on_its_way_back(made, Way.full)
    for each in job.every[1:]:
        each.kill()
    job.system.check()
    assert job.every[0].lives and any("0 of 3 went on" in line for line in job.said)


def test_if_the_one_on_its_way_back_fails_too_the_run_ends(made):
    job = on_its_way_back(made, Way.fails)
    job.every[1].kill()
    job.system.check()
    job.ways[1].fails()
    job.every[2].kill()
    with pytest.raises(KeyshiftError, match=r"no replica is left: .*replica 0 did not come back: no memory"):
        job.system.check()


def asked(job):
    """What each replica was asked to move to, in that order."""
    return [[did[1].slots for did in each.did if did[0] == "request"] for each in job.every]


def test_all_of_them_are_asked_to_move_in_the_same_order_and_told_before(made):
    job = made()
    job.system.announce(ScaleTo(3))
    for slots in (3, 2):
        job.system.request(ScaleTo(slots))
    with pytest.raises(BadInput, match="replicas do not take back what has not begun"):
        job.system.request(ScaleTo(1), replace=True)
    assert asked(job) == [[3, 2]] * 3
    assert [each.did[0] for each in job.every] == [("announce", ScaleTo(3), None)] * 3
    assert not job.system.busy
    job.every[2].busy = True
    assert job.system.busy, "one of them is late"


APART = {"trigger": "scale", "replicas_move": "one_by_one", "returns": False}


def keeps_up(job, number):
    """It has done so until now."""
    job.standings[number] = Standing(0, round(time.time() * 1e6))


def test_one_moves_when_the_one_before_has_moved_and_keeps_up_again(made):
    job = made(**APART)
    for each in job.every:
        each.busy = True
    for slots in (3, 2):
        job.system.request(ScaleTo(slots))
    for number, each in enumerate(job.every):
        keeps_up(job, number)  # which counts only behind its move
        job.system.check()
        assert asked(job) == [[3]] * (number + 1) + [[]] * (2 - number) and job.system.busy
        each.busy = False
        job.system.check()
        assert asked(job) == [[3]] * (number + 1) + [[]] * (2 - number), "it has moved, and may be late"
        keeps_up(job, number)
        job.system.check()
    assert asked(job) == [[3, 2], [3], [3]], "the next request begins with the first one again"
    for number in range(3):
        for _ in range(2):
            keeps_up(job, number)
            job.system.check()
    assert asked(job) == [[3, 2]] * 3 and not job.system.busy
    moved = [line for line in job.said if " moved in " in line]
    assert [line.split()[1] for line in moved] == ["0", "1", "2"] * 2
    assert all("kept up with the others within" in line for line in moved)
    assert job.system.final_state().judged == 1, "the one that has come furthest"
    assert made(trigger="scale").system.final_state().judged is None


def test_nobody_waits_for_one_that_dies_while_it_moves_and_the_last_one_waits_for_nobody(made):
    job = made(**APART)
    job.system.request(ScaleTo(3))
    for each in job.every[:2]:
        each.kill()
        job.system.check()
    assert asked(job) == [[3]] * 3
    job.system.check()
    assert not job.system.busy and job.said[-1].startswith("replica 2 moved in ") and job.said[-1].endswith(", alone")


def one_dies_while_it_moves(made):
    """Whoever dies comes back; the others have not moved yet."""
    job = made(**APART | {"returns": True})
    for each in job.every:
        each.busy = True
    job.system.request(ScaleTo(3))
    job.every[0].kill()
    return job


def test_one_that_dies_while_it_moves_comes_back_when_the_others_have_moved_and_is_not_said_to_have_moved(made):
    job = one_dies_while_it_moves(made)
    for number in (1, 2):
        job.system.check()
        assert job.ways == [] and asked(job)[number] == [3], "it would have the assignment of one of them"
        job.every[number].busy = False
        job.system.check()
        keeps_up(job, number)
    assert job.system.busy
    for _ in range(2):
        job.system.check()
    [way] = job.ways
    assert way.replica is job.every[0] and job.system.busy
    way.full()
    job.every[0].busy = False
    job.system.check()
    assert [line.split()[1] for line in job.said if " moved in " in line] == ["1", "2"] and not job.system.busy


def test_nobody_comes_back_behind_moves_that_are_cancelled(made):
    job = one_dies_while_it_moves(made)
    job.system.check()
    job.system.cancel()
    for each in job.every:
        each.busy = False
    job.system.check()
    assert job.ways == [] and not job.system.busy


@pytest.mark.parametrize("passes", [1, -1], ids=["", "the clock is set back"])
def test_one_that_does_not_keep_up_any_more_is_told_of_and_the_next_one_moves(made, monkeypatch, passes):
    monkeypatch.setattr(requests, "CATCH_UP_S", 0.0)
    job, now, begun = made(**APART), time.time(), time.monotonic()
    monkeypatch.setattr(time, "time", lambda: now + passes * (time.monotonic() - begun))
    job.system.request(ScaleTo(3))
    for _ in range(2):
        time.sleep(0.001)
        job.system.check()
    assert asked(job) == [[3], [3], []] and "did not keep up with the others within 0 s" in job.said[-1]
    job.system.cancel()
    job.system.check()
    assert asked(job) == [[3], [3], []] and not job.system.busy


def test_one_that_has_died_and_nobody_has_looked_since_is_no_hindrance(made):
    job = made()
    job.every[1].dies = ServiceUnavailable("job run-r1 is not running now")
    job.system.request(ScaleTo(3))
    assert asked(job) == [[3], [3], [3]], "it was asked all the same"


def test_what_was_not_begun_does_not_happen_if_it_is_cancelled(made):
    job = made()
    job.every[0].kill()
    job.system.check()
    job.system.request(ScaleTo(3))
    job.system.cancel()
    assert not job.system.busy
    job.system.check()
    assert asked(job) == [[], [], []]


def test_a_replica_that_was_struck_in_a_phase_was_struck(made):
    job = made("kill:replica@transfer", trigger="scale")
    [fault] = parse("kill:replica@transfer")
    job.struck.append((5.0, fault))
    final = job.system.final_state()
    assert final.struck == [(5.0, "kill replica")] and not any("did not happen" in note for note in final.notes)
