"""One night of an entry: what is left of another is ended, the job goes on, and somebody is told how it went."""

import os
import time
import traceback
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from bamboo_cli import output, resuming
from bamboo_cli.config import JobConfig
from bamboo_cli.cron import deciding, leftover, lock, nights, notifying, telling
from bamboo_cli.cron.child import Child, Ended
from bamboo_cli.cron.deciding import Left, NothingToDo
from bamboo_cli.cron.entries import Entry
from bamboo_cli.cron.environment import enter, load_job_of
from bamboo_cli.cron.log import NightLog
from bamboo_cli.cron.nights import EXIT_BUG, EXIT_KILLED, EXIT_LEFT_OUT, Night, NightState
from bamboo_cli.cron.signalled import forwarded
from bamboo_cli.errors import BambooError


@dataclass(frozen=True, slots=True, kw_only=True)
class _Result:
    state: NightState
    exit_code: int
    what: str
    """For the summary line."""
    reason: tuple[str, ...] = ()
    run_id: str | None = None


def run_night(entry: Entry, *, anew: bool) -> Night:
    """All of it, with what is printed. Raises nothing that can be told otherwise: its outcome says what failed."""
    started_at = time.time()
    with ExitStack() as stack:
        try:
            lock_fd = stack.enter_context(lock.held(entry.cluster))
        except OSError as error:  # the disk has become one that can only be read, say
            return _tell(entry, Night(started_at=started_at), _without_lock(error), None, stored=False)
        if lock_fd is None:
            what = f"left out, since another night of cluster {entry.cluster} is still on"
            return _tell(entry, Night(started_at=started_at), _left_out(what), None, stored=False)
        log = NightLog(entry.log)
        before = nights.read(entry.folder)
        try:
            started = Night(started_at=started_at, pid=os.getpid())
            nights.write(entry, started)
            killed = before is not None and before.ended_at is None
            notes = _tell_of_killed(entry, before, log) if before is not None and killed else []
            result = _Work(entry, log, lock_fd, cut_off=killed).do(anew=anew)
            return _tell(entry, started, result, log, stored=True, notes=notes)
        finally:
            log.close()


class _Work:
    def __init__(self, entry: Entry, log: NightLog, lock_fd: int, *, cut_off: bool) -> None:
        self._entry = entry
        self._log = log
        self._cut_off = cut_off
        self._child = Child(entry.entry_id, lock_fd, log.line)

    def do(self, *, anew: bool) -> _Result:
        try:
            with forwarded(self._child.stop):
                enter(self._entry)
                job = load_job_of(self._entry)
                return self._make_room() or self._train(job, anew=anew or self._entry.anew)
        except BambooError as error:
            return _failed(error)
        except Exception as error:  # noqa: BLE001 - a bug, of which somebody has to be told all the same
            for text in traceback.format_exc().splitlines():
                self._log.line(text)
            return _Result(state=NightState.FAILED, exit_code=EXIT_BUG, what=f"a bug in Bamboo: {error!r}")

    def _make_room(self) -> _Result | None:
        """None: nothing is in the way any more."""
        left = deciding.whose(leftover.look(self._entry.cluster), last_was_cut_off=self._cut_off)
        if left is Left.IN_USE:
            return _left_out(f"left out, since somebody trains on cluster {self._entry.cluster}")
        if left is Left.IDLE:
            return _Result(
                state=NightState.FAILED,
                exit_code=1,
                what=f"cluster {self._entry.cluster} is up, costs money, and was not made by a night",
                reason=(f"End it with `bamboo down --cluster {self._entry.cluster}`, or give the entry a --cluster.",),
            )
        if left is Left.OURS:
            self._log.line("an earlier night has left its cluster up; it is ended first")
            return self._end_what_is_left()
        return None

    def _end_what_is_left(self) -> _Result | None:
        """None: nothing is left. A signal does not stop this: it is what the signal wants."""
        ended = self._child.run(["down", "--cluster", self._entry.cluster, "--yes"], stoppable=False)
        if ended.exit_code == 0:
            return None
        return _Result(
            state=NightState.FAILED,
            exit_code=ended.exit_code,
            what=f"cluster {self._entry.cluster} could not be ended, and may cost money",
            reason=telling.reason_in(ended.lines),
        )

    def _train(self, job: JobConfig, *, anew: bool) -> _Result:
        newest = None if anew else resuming.newest(job, self._entry.cluster)
        known = None
        if newest is not None:
            resuming.check_same(job, newest)  # one that was changed is not done, though the steps may be
            known = deciding.Newest(run_id=newest.run_id, step=newest.step)
        to_do = deciding.what_to_do(known, job.steps, anew=anew)
        if isinstance(to_do, NothingToDo):
            what = f"nothing to do, all {to_do.num_steps} steps are done; nothing was rented"
            return _Result(state=NightState.COMPLETE, exit_code=0, what=what)
        if (number := self._child.stopped_by) is not None:
            return _stopped(f"stopped by {number.name}, before anything was rented", 128 + number)
        begun = time.monotonic()
        ended = self._child.run(self._arguments(to_do.resume), stoppable=True)
        result = _of(ended, to_do.first_step, job.steps, time.monotonic() - begun)
        if deciding.whose(leftover.look(self._entry.cluster), last_was_cut_off=True) is Left.OURS:
            self._log.line("the run has ended, and its cluster is up; it is ended")
            result = self._end_what_is_left() or result
        return result

    def _arguments(self, resume: str | None) -> list[str]:
        settings = [word for setting in self._entry.settings for word in ("--set", setting)]
        resumed = [] if resume is None else ["--resume", resume]
        cluster = ["--cluster", self._entry.cluster]
        return ["run", self._entry.job, *settings, *cluster, *resumed, "--yes", "--json"]


def _of(ended: Ended, first_step: int, num_steps: int, took_s: float) -> _Result:
    run, reason = telling.run_in(ended.lines), telling.reason_in(ended.lines)
    state = telling.state_of(ended.exit_code)
    what = telling.of_run(run, state, first_step=first_step, num_steps=num_steps, took_s=took_s)
    if state is NightState.FAILED:
        number = telling.signal_of(ended.exit_code)
        what = f"`bamboo run` was killed by {number}" if number else reason[0] if reason else what
    run_id = None if run is None else run.get("run_id")
    return _Result(state=state, exit_code=ended.exit_code, what=what, reason=reason, run_id=run_id)


def _left_out(what: str) -> _Result:
    return _Result(state=NightState.LEFT_OUT, exit_code=EXIT_LEFT_OUT, what=what)


def _without_lock(error: OSError) -> _Result:
    what = f"its lock cannot be opened ({error.strerror}); nothing was rented"
    return _Result(state=NightState.FAILED, exit_code=1, what=what, reason=(f"The lock is {error.filename}.",))


def _stopped(what: str, exit_code: int) -> _Result:
    return _Result(state=NightState.STOPPED, exit_code=exit_code, what=what)


def _failed(error: BambooError) -> _Result:
    first, *more = error.message.splitlines() or [""]
    reason = (*more, error.next_step) if error.next_step else tuple(more)
    return _Result(state=NightState.FAILED, exit_code=error.exit_code, what=first, reason=reason)


def _tell_of_killed(entry: Entry, before: Night, log: NightLog) -> list[str]:
    """At once: this one may be killed, too. What is to be told besides how it goes."""
    at = time.strftime("%Y-%m-%d %H:%M", time.localtime(before.started_at))
    what = f"the night of {at} was killed, and never told how it ended"
    text = telling.summary(entry.entry_id, what, NightState.KILLED, EXIT_KILLED)
    killed = _Result(state=NightState.KILLED, exit_code=EXIT_KILLED, what=what)
    notes = [text, *_notify(entry, replace(before, state=NightState.KILLED, summary=text), killed, ())]
    for note in notes:
        log.line(note)
    return notes


def _tell(
    entry: Entry,
    night: Night,
    result: _Result,
    log: NightLog | None,
    *,
    stored: bool,
    notes: Sequence[str] = (),
) -> Night:
    """``stored``: not where another night is on, whose record this would replace. ``notes``: in the log already."""
    ended = replace(
        night,
        state=result.state,
        ended_at=time.time(),
        exit_code=result.exit_code,
        summary=telling.summary(entry.entry_id, result.what, result.state, result.exit_code),
        run_id=result.run_id,
    )
    tail = log.tail if log is not None else ()
    before, notes = notes, _notify(entry, ended, result, tail) if result.state.is_failure else []
    if log is not None:
        for text in (ended.summary, *result.reason, *notes):
            log.line(text)
    notes = [*before, *notes]
    if stored and not nights.write(entry, ended):
        notes.append(f"how it went could not be written to {entry.folder}")
    if log is not None and log.num_lost:
        notes.append(f"{output.plural(log.num_lost, 'line')} of the log could not be written: is the disk full?")
    if result.state.is_failure or before or not entry.quiet:
        for text in telling.mail(ended, reason=result.reason, tail=tail, notes=notes, log=str(entry.log)):
            output.line(text)
    return ended


def _notify(entry: Entry, night: Night, result: _Result, tail: Sequence[str]) -> list[str]:
    """What went wrong with it."""
    news = notifying.News(
        text=night.summary,
        id=entry.entry_id,
        job=entry.job,
        state=str(night.state),
        exit_code=result.exit_code,
        run_id=night.run_id,
        log=str(entry.log),
        tail=(*result.reason, *(telling.cut(line) for line in tail)),
    )
    tried = ((target, notifying.notify(target, news)) for target in entry.notify)
    return [f"{notifying.shown(target)} could not be notified: {why}" for target, why in tried if why is not None]
