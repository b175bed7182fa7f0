"""The step protocol of one worker: adopts plans, runs steps, survives the loss of peers (docs/step.md). Over 300 lines
because it is one protocol: what is sent, what is received and what a new plan changes have to be read together.

Written against ``Compute`` (the arithmetic), ``send`` (the transport) and the plan. No torch, no sockets, no clock, no
thread: the worker's loop drives it in production, the test worlds drive it on integers. The caller repeats
``perform(next())`` and hands in whatever arrives; every method returns at once.
"""

from collections.abc import Callable

from bamboo_trainer import control
from bamboo_trainer.commit import differing_copies, is_finite, stop_wanted, summarise
from bamboo_trainer.committed import CommittedSteps
from bamboo_trainer.compute import Compute, Value
from bamboo_trainer.frames import Datum, FetchLayer, Frame, Held, LayerHere, LearnLayer, SyncState, Taught, Update
from bamboo_trainer.learning import Learning
from bamboo_trainer.plan import Mode, Plan, PlanKind, StepSummary, WorkerId
from bamboo_trainer.routes import Routes
from bamboo_trainer.schedule import (
    Action,
    HostedStage,
    Key,
    Kind,
    backward_key,
    contribution_key,
    forward_key,
    next_action,
    partial_key,
    reduced_key,
)
from bamboo_trainer.spared import is_spared, lacks_losses, run_what_is_needed
from bamboo_trainer.step import StepState

Send = Callable[[WorkerId, Frame], None]
"""Hands a frame to the link. A frame for a peer without a link is dropped; ``link_up`` makes up for it."""
Report = Callable[[control.FromWorker], None]


class ProtocolError(Exception):
    """An invariant of the step protocol is broken: a bug, never bad luck."""


class Executor:
    """``generation``: the newest heard of. ``committed_step``: what the held layers are at; -1: initial."""

    def __init__(
        self, worker_id: WorkerId, spec: control.TrainingSpec, compute: Compute, send: Send, report: Report
    ) -> None:
        self.worker_id = worker_id
        self.generation = 0
        self.committed_step = -1
        self.plan: Plan | None = None
        self.stopped = True
        self._spec = spec
        self._compute = compute
        self._send = send
        self._report = report
        self._now = StepState(0)
        self._others: tuple[WorkerId, ...] = ()
        self._later: list[tuple[WorkerId, Frame]] = []  # of a newer generation, or of the next step
        self._committed = CommittedSteps()
        self._stop_wanted = False
        self._awaited: dict[int, WorkerId] = {}  # layer -> the peer it was asked of
        self._distrusted: set[int] = set()
        self._to_save: int | None = None
        self._save_after: int | None = None  # a step to come whose layers were asked for
        self._learning = Learning(compute, send, report)

    @property
    def learners(self) -> frozenset[WorkerId]:
        """Workers outside the plan that follow layers of this one."""
        return self._learning.learners

    @property
    def step(self) -> int:
        """The step in flight, or the next one."""
        return self._now.step

    # --- instructions of the coordinator -----------------------------------------------------------------------

    def adopt(self, plan: Plan) -> None:
        """Run under a newer plan; an older or equal one is ignored. Raises CheckpointError when a restore fails."""
        if plan.generation <= self.generation:
            return
        if self._to_save is not None:
            self._save()
        if plan.roll_forward is not None and plan.roll_forward.step == self.committed_step + 1 and self.plan:
            self._apply(plan.roll_forward)
        had_plan = self.plan is not None
        self.stopped = True  # until the plan is in force: a restore may fail
        self.generation = plan.generation
        self.plan = plan
        self._routes = Routes(plan, self._compute.units)
        self._others = tuple(w for w in plan.worker_ids() if w != self.worker_id)
        self._stop_wanted = False
        is_member = self.worker_id in plan.worker_ids()
        if is_member and not had_plan and plan.kind is PlanKind.FAILOVER:
            raise ProtocolError(f"{self.worker_id}: failover plan {plan.generation} without a plan before it")
        if plan.kind is PlanKind.BOUNDARY:
            self._adopt_boundary(plan)
        self.stopped = not is_member or self.step >= self._spec.num_steps
        if plan.kind is PlanKind.FAILOVER and is_member:
            self._adopt_failover(plan)
        if is_member:
            self._sync_all()
        if self.worker_id == plan.reporter:
            for under, summary in self._committed.after(plan.told_step):
                self._report_commit(summary, under)
        self._replay_later()

    def learn(self, message: control.Learn) -> None:
        """Get layers for a plan to come, and follow them. See ``learning``."""
        self._learning.learn(message)

    def _adopt_boundary(self, plan: Plan) -> None:
        if self.committed_step != plan.first_step - 1:
            for layer in self._compute.held_layers():
                self._compute.drop_layer(layer)
            self.committed_step = plan.first_step - 1
            self._committed.forget_from(plan.first_step)
        self._begin(plan.first_step)
        self._awaited = {}
        fetches = [fetch for fetch in plan.fetches if fetch.worker_id == self.worker_id]
        learned = self._learning.adopt(plan, [fetch.layer for fetch in fetches if fetch.source is not None])
        for fetch in fetches:
            if fetch.layer in learned:
                self._distrusted.discard(fetch.layer)
            else:
                self._fetch(plan, fetch.layer, fetch.source)
        if not any(fetch.source == self.worker_id for fetch in plan.fetches):
            self._drop_strange_layers(plan)
        self._settle_layers()

    def _fetch(self, plan: Plan, layer: int, source: WorkerId | None) -> None:
        self._distrusted.discard(layer)
        if source is not None:
            self._awaited[layer] = source
            self._send(source, FetchLayer(generation=plan.generation, layer=layer))
        elif plan.checkpoint_step is None:
            self._compute.initialise(layer)
        else:
            self._compute.restore(layer, plan.checkpoint_step)

    def _adopt_failover(self, plan: Plan) -> None:
        self._now.new_generation()
        for hosted in self._now.place(plan, self._routes, self.worker_id):
            self._take_over(plan, hosted)
        run_what_is_needed(self._now, plan, self.worker_id, self.worker_id, self._now.store, self._now.spared)
        self._settle_layers()

    def _take_over(self, plan: Plan, hosted: HostedStage) -> None:
        stage = hosted.stage
        if not hosted.apart:
            self._report(
                control.TookOver(
                    generation=self.generation,
                    step=self.step,
                    pipeline_index=stage.pipeline_index,
                    stage_index=stage.stage_index,
                    forwards_at_hand=max(
                        self._compute.redundant_forwards_done(stage), hosted.next_forward - hosted.microbatches.start
                    ),
                )
            )
        if is_spared(self._now, hosted, plan, self._compute.units):
            hosted.next_forward = hosted.next_backward = hosted.microbatches.stop
            hosted.contributed = hosted.spared = True

    def quiesce(self, generation: int) -> None:
        """Stop at the next boundary that all members agree on; answered when stopped (at once, if already so)."""
        if generation != self.generation or self.plan is None:
            return
        self._stop_wanted = True
        if self.stopped:
            self._report_stopped()

    def halt(self, generation: int) -> None:
        """Stop at once and refuse older generations. Reduced gradients are kept for a roll-forward."""
        if generation < self.generation:
            return
        self.generation = generation
        self.stopped = True
        self._report_stopped()

    def save(self, generation: int, step: int) -> None:
        """Save the hosted layers as they are after ``step``: now, or when it is committed."""
        if generation != self.generation or self.plan is None:
            return
        if step == self.committed_step and not self._awaited:
            self._to_save = step
        else:
            self._save_after = step

    # --- work ---------------------------------------------------------------------------------------------------

    def next(self) -> Action | None:
        """The most urgent action that can be done now; None: wait for a frame or an instruction."""
        if self._to_save is not None:
            return Action(Kind.SAVE)
        if self.stopped or self.plan is None:
            return None
        now = self._now
        if now.told_held and len(now.held) == len(self.plan.members):
            return Action(Kind.COMMIT)
        if now.told_held and all(h.finished for h in now.hosted):  # else a peer needs what was thought to be done
            return None
        if now.reducible:
            unit, chunk = now.reducible[0]
            return Action(Kind.REDUCE, unit_index=unit, chunk=chunk)
        action = next_action(now.hosted, now.shadowed, now.store.__contains__)
        if action is None and not now.told_held and self._holds_everything():
            return Action(Kind.HOLD)
        return action

    def perform(self, action: Action) -> None:
        """Do what ``next`` returned."""
        match action.kind:
            case Kind.FORWARD:
                self._forward(self._hosted_stage(action), action.microbatch)
            case Kind.BACKWARD:
                self._backward(self._hosted_stage(action), action.microbatch)
            case Kind.REDUNDANT_FORWARD:
                self._redundant_forward(action)
            case Kind.CONTRIBUTE:
                self._contribute(self._hosted_stage(action))
            case Kind.REDUCE:
                self._reduce()
            case Kind.HOLD:
                self._hold()
            case Kind.COMMIT:
                self._commit()
            case Kind.SAVE:
                self._save()

    def _hosted_stage(self, action: Action) -> HostedStage:
        for hosted in self._now.hosted:
            if hosted.is_of(action):
                return hosted
        raise ProtocolError(f"{self.worker_id} does not host the stage of {action}")

    def _forward(self, hosted: HostedStage, m: int) -> None:
        stage = hosted.stage
        d, s = stage.pipeline_index, stage.stage_index
        inputs = self._now.store[forward_key(d, s, m)] if s > 0 else None
        output = self._compute.forward(stage, m, inputs)
        hosted.next_forward = m + 1
        if s == hosted.num_stages - 1:
            self._now.losses[m] = self._compute.loss(m)
        else:
            self._made_by(hosted, forward_key(d, s + 1, m), output)

    def _backward(self, hosted: HostedStage, m: int) -> None:
        stage = hosted.stage
        d, s = stage.pipeline_index, stage.stage_index
        gradient = self._now.store[backward_key(d, s, m)] if s < hosted.num_stages - 1 else None
        upstream = self._compute.backward(stage, m, gradient, apart=hosted.apart)
        hosted.next_backward = m + 1
        if s > 0:
            self._made_by(hosted, backward_key(d, s - 1, m), upstream)

    def _made_by(self, hosted: HostedStage, key: Key, value: Value) -> None:
        """A redundant stage keeps what it makes to itself: its host sends the same."""
        if hosted.redundant:
            self._now.store.setdefault(key, value)
        else:
            self._produce(key, value)

    def _redundant_forward(self, action: Action) -> None:
        d, s, m = action.pipeline_index, action.stage_index, action.microbatch
        by_place = {shadowed.stage.place: shadowed for shadowed in self._now.shadowed}
        shadowed = by_place[d, s]
        complete = self._compute.redundant_forward(shadowed.stage, m, self._now.store.get(forward_key(d, s, m)))
        shadowed.advance(complete=complete)
        if complete and (d, s + 1) in by_place:  # at level 2, what its FRC reads
            self._now.store[forward_key(d, s + 1, m)] = self._compute.redundant_output(shadowed.stage, m)

    def _contribute(self, hosted: HostedStage) -> None:
        assert self.plan is not None
        d, num_chunks = hosted.stage.pipeline_index, self._routes.num_chunks
        hosted.contributed = True
        sums = self._partial_sums(hosted)
        if hosted.microbatches.stop != self.plan.pipelines[d].end_microbatch:
            for layer, value in sums.items():
                self._produce(partial_key(layer, d, hosted.microbatches.stop), value)
            return
        for unit in self._compute.units:
            for layer in unit.layers:
                if layer in hosted.stage.layers:
                    for chunk in range(num_chunks):
                        value = self._compute.contribution(unit, layer, d, chunk, num_chunks, sums.get(layer))
                        self._produce(contribution_key(unit.index, chunk, d, layer), value)

    def _partial_sums(self, hosted: HostedStage) -> dict[int, Value]:
        """By layer, up to the end of the part; none of a stage that one worker runs alone."""
        d, microbatches = hosted.stage.pipeline_index, hosted.microbatches
        if not hosted.stage.parts:
            return {}
        before = {
            x: self._now.store[partial_key(x, d, microbatches.start)] if hosted.apart else None
            for x in hosted.stage.layers
        }
        return {x: self._compute.partial_sum(x, d, microbatches, before[x]) for x in hosted.stage.layers}

    def _reduce(self) -> None:
        unit, chunk = self._now.reducible.pop(0)
        if reduced_key(unit, chunk) not in self._now.store:
            parts = [self._now.store[key] for key in self._routes.contributions(unit, chunk)]
            self._produce(reduced_key(unit, chunk), self._compute.add(parts))

    def _holds_everything(self) -> bool:
        if self._awaited or not all(h.finished and not lacks_losses(self._now, h) for h in self._now.hosted):
            return False
        eager = (s for s in self._now.shadowed if s.stage.mode is Mode.EAGER)
        if any(s.next_redundant < s.microbatches.stop for s in eager):
            return False
        return self._now.has_sums(self._routes.units_held_by(self.worker_id), self._routes.num_chunks)

    def _hold(self) -> None:
        assert self.plan is not None
        now = self._now
        reported = [u for u in self._compute.units if self.plan.stage_of_layer(0, u.layers[0]).host == self.worker_id]
        every = self._spec.digest_every
        compare = every > 0 and now.step > 0 and now.step % every == 0
        held = Held(
            generation=self.generation,
            step=now.step,
            losses=now.losses.copy(),
            square_norms={
                u.index: self._compute.square_norm(u, now.sum(u.index, self._routes.num_chunks)) for u in reported
            },
            stop=self._stop_wanted,
            digests={x: self._compute.digest(x) for x in self.plan.layers_of(self.worker_id)} if compare else {},
        )
        now.told_held = True
        now.held[self.worker_id] = held
        for peer in self._others:
            self._send(peer, held)

    def _commit(self) -> None:
        assert self.plan is not None
        held = self._now.held
        summary = summarise(self.step, held, self.plan, self._compute.units)
        if not is_finite(summary):
            self.stopped = True
            detail = f"step {self.step}: loss {summary.loss}, squared gradient norm {sum(summary.square_norms)}"
            self._report(control.WorkerFailed(fault="loss_not_finite", step=self.step, detail=detail))
            return
        for layer in differing_copies(self.worker_id, held, self.plan):
            self._distrusted.add(layer)
            self._report(control.DigestMismatch(generation=self.generation, step=self.step, layer=layer))
        self._finish_step(summary, stop=stop_wanted(held))

    def _finish_step(self, summary: StepSummary, *, stop: bool) -> None:
        assert self.plan is not None
        self._apply(summary)
        last = summary.step == self._spec.num_steps - 1
        if last or (summary.step + 1) % self._spec.checkpoint_every == 0 or summary.step == self._save_after:
            self._to_save = summary.step
        if self.worker_id == self.plan.reporter:
            self._report_commit(summary, self.plan.generation)
        self._begin(summary.step + 1)
        self.stopped = last or stop
        if stop:
            self._report_stopped()
        self._replay_later()

    def _apply(self, summary: StepSummary) -> None:
        assert self.plan is not None
        units, num_chunks = self._routes.units_held_by(self.worker_id), self._routes.num_chunks
        if not self._now.has_sums(units, num_chunks):
            raise ProtocolError(f"{self.worker_id}: step {summary.step} is committed, but its gradients are not here")
        self._drop_strange_layers(self.plan)  # kept to hand them over: by now they are where they are needed
        sums = {unit.index: self._now.sum(unit.index, num_chunks) for unit in units}
        self._compute.apply(summary.step, sums, summary.square_norms)
        self._learning.teach_step(summary, sums, self._routes.units_of)
        self.committed_step = summary.step
        self._committed.add(self.plan.generation, summary)

    def _save(self) -> None:
        assert self.plan is not None and self._to_save is not None
        step, self._to_save = self._to_save, None
        if layers := self.plan.saved_by(self.worker_id):
            self._compute.save(step, layers)
        if step == self._spec.num_steps - 1:
            self._report(control.RunComplete(generation=self.generation, step=step))

    # --- frames and links ----------------------------------------------------------------------------------------

    def receive(self, sender: WorkerId, frame: Frame) -> None:
        """A frame from a peer. Older generations are refused, newer ones wait for their plan."""
        if isinstance(frame, LearnLayer | Taught | Update):
            self._learning.receive(sender, frame, self.committed_step)
            return
        if frame.generation < self.generation:
            return
        if frame.generation > self.generation or self.plan is None or self.plan.generation != self.generation:
            self._later.append((sender, frame))
            return
        match frame:
            case Datum() | Held() if frame.step > self.step:
                self._later.append((sender, frame))
            case Datum():
                if frame.step == self.step and frame.key not in self._now.store:
                    if frame.loss is not None:
                        self._now.losses[frame.key.c] = frame.loss
                    if frame.key.kind == "R" and self._routes.producer(frame.key) == self.worker_id:
                        self._produce(frame.key, frame.value)  # others count on this worker to have summed it
                    else:
                        self._now.add(frame.key, frame.value, self._routes, self.worker_id)
            case Held():
                if frame.step == self.step:
                    self._now.held[sender] = frame
            case SyncState():
                self._on_sync(sender, frame)
            case FetchLayer():
                if self.committed_step == self.plan.first_step - 1:
                    state = self._compute.export_layer(frame.layer)
                    self._send(sender, LayerHere(generation=self.generation, layer=frame.layer, state=state))
            case LayerHere():
                if self._awaited.pop(frame.layer, None) is not None:
                    self._compute.import_layer(frame.layer, frame.state)
                    self._settle_layers()

    def link_up(self, peer: WorkerId) -> None:
        """A link to a peer is there (again): whatever was under way on the old one may be lost."""
        self._learning.link_up(peer)
        if self.plan is None or self.plan.generation != self.generation or peer not in self._others:
            return
        for layer, source in self._awaited.items():
            if source == peer:
                self._send(peer, FetchLayer(generation=self.generation, layer=layer))
        self._sync(peer)

    def _sync_all(self) -> None:
        """After a plan. A peer that had it first may have dialled, and dropped frames before the link was there, all
        of it before we knew that it is a peer."""
        for peer in self._others:
            self._sync(peer)

    def _sync(self, peer: WorkerId) -> None:
        state = SyncState(
            generation=self.generation,
            step=self.step,
            have=frozenset(self._now.store),
            last=self._committed.summary_of(self.committed_step),
            stopped=self.stopped,
            losses=self._now.losses.copy(),
            spared=self._now.spared,
        )
        self._send(peer, state)
        if self._now.told_held:
            self._send(peer, self._now.held[self.worker_id])

    def _on_sync(self, peer: WorkerId, state: SyncState) -> None:
        if state.step == self.step + 1 and state.last is not None:
            self._finish_step(state.last, stop=state.stopped and state.step < self._spec.num_steps)
        if state.step > self.step:
            return
        has = state.have if state.step == self.step else frozenset[Key]()
        self._now.peer_has[peer] = has
        if state.step == self.step and self.plan is not None:
            self._now.losses |= state.losses
            if run_what_is_needed(self._now, self.plan, self.worker_id, peer, has, state.spared):
                self._sync_all()
        for key, value in list(self._now.store.items()):
            if key in has or peer not in self._routes.receivers(key):
                continue
            producer = self._routes.producer(key)
            if producer == self.worker_id or (key.kind == "R" and producer == peer):
                self._send_datum(peer, key, value)

    def _produce(self, key: Key, value: Value) -> None:
        self._now.add(key, value, self._routes, self.worker_id)
        for peer in self._routes.receivers(key):
            if peer != self.worker_id and key not in self._now.peer_has.get(peer, ()):
                self._send_datum(peer, key, value)

    def _send_datum(self, peer: WorkerId, key: Key, value: Value) -> None:
        loss = self._now.losses.get(key.c) if key.kind == "B" else None
        self._send(peer, Datum(generation=self.generation, step=self.step, key=key, value=value, loss=loss))

    def _replay_later(self) -> None:
        later, self._later = self._later, []
        for sender, frame in later:
            self.receive(sender, frame)

    # --- small parts ---------------------------------------------------------------------------------------------

    def _begin(self, step: int) -> None:
        assert self.plan is not None
        self._now = StepState(step)
        self._compute.begin_step(step)
        self._now.place(self.plan, self._routes, self.worker_id)

    def _settle_layers(self) -> None:
        """Marks the stages whose layers are here; when all are, says so."""
        assert self.plan is not None
        for hosted in self._now.hosted:
            hosted.present = not any(layer in self._awaited for layer in hosted.stage.layers)
        for shadowed in self._now.shadowed:
            shadowed.present = not any(layer in self._awaited for layer in shadowed.stage.layers)
        self._compute.keep_near(
            hosted={x for hosted in self._now.hosted for x in hosted.stage.layers},
            read={x for s in self._now.shadowed if s.stage.mode.computes_ahead for x in s.stage.layers},
        )
        if not self._awaited:
            self._report(control.Adopted(generation=self.generation))
            if self.step >= self._spec.num_steps and self.worker_id in self.plan.worker_ids():
                self._to_save = self._spec.num_steps - 1  # the last checkpoint may lack the layers of a lost worker

    def _drop_strange_layers(self, plan: Plan) -> None:
        wanted = plan.layers_of(self.worker_id)
        for layer in self._compute.held_layers():
            if layer not in wanted:
                self._compute.drop_layer(layer)

    def _report_commit(self, summary: StepSummary, under: int) -> None:
        """The worker's loop fills in what needs a clock or the recipe."""
        samples = self._spec.num_microbatches * self._spec.microbatch_size
        self._report(
            control.StepCommitted(
                generation=self.generation,
                plan_generation=under,
                summary=summary,
                learning_rate=0.0,
                step_s=0.0,
                num_samples=samples,
            )
        )

    def _report_stopped(self) -> None:
        can_roll_forward = (
            self.plan is not None
            and self.step == self.committed_step + 1
            and not self._awaited
            and bool(self._now.hosted or self._now.shadowed)
            and self._now.has_sums(self._routes.units_held_by(self.worker_id), self._routes.num_chunks)
        )
        self._report(
            control.Stopped(
                generation=self.generation,
                committed_step=self.committed_step,
                layers=tuple(x for x in self._compute.held_layers() if x not in self._distrusted),
                summary=self._committed.summary_of(self.committed_step),
                held_step=self.step if can_roll_forward else None,
            )
        )
