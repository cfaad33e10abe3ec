"""What happens by itself: clients produce, followers fetch, brokers hear from the store and ask it for changes.

``_can_x`` gives all that could happen of a kind now, ``_do_x`` makes one of them happen and says so in words.
"""

from collections.abc import Callable

from skep.base.errors import Fenced, KafkaError, VersionConflict
from tests.simulation.cluster_state import ClusterState
from tests.simulation.process import ModelFetcher, Request


class Events(ClusterState):
    """The steps of a cluster in which nothing breaks but a connection to the store."""

    _do_checkpoint: Callable[..., str]

    # Clients.

    def _can_produce(self):
        return [(process, partition) for process in self._awake() if process.is_serving for partition in process.led]

    def _do_produce(self, choice, how):
        process, partition = choice
        value, acks_all = next(self._values), how % 4 != 3
        try:
            appended, future = partition.append(b"", value, acks_all=acks_all)
        except KafkaError as error:
            return f"{process.id} refuses {value}: {error.code.name}"
        index, entry = partition.topic_partition.partition, (partition.leader_epoch, value)
        if acks_all:
            self._waiting.append((index, appended.base_offset, entry, future))
        return f"{process.id} appends {value} at {appended.base_offset} of {index}, acks={'all' if acks_all else 1}"

    def _can_drive(self):
        return [one for one in self._can_produce() if one[1].topic_partition.partition == 0]

    def _do_drive(self, choice, how):
        """The driver of a query goes on with any broker that believes to lead; or it has died, and another begins."""
        process, partition = choice
        if how % 16 == 0 or (how % 3 == 0 and self.driver.has_unnoted):
            self.driver.dies()
            return "the driver dies"
        told = f"with broker {process.id} {self.driver.step(partition, self._values)}"
        if how % 2:
            # What a driver waits for takes much less time than its own steps.
            for _ in range(2):
                for one in [one for one in self._can_round() if one[1] is process]:
                    told += f"; {self._do_round(one, how)}"
        return told

    _can_delete = _can_produce

    def _do_delete(self, choice, how):
        """DeleteRecords, up to the high watermark or before it; it may die before its checkpoint is written."""
        process, partition = choice
        start, end = partition.log.log_start_offset, partition.high_watermark
        offset = end if how % 2 else start + (how >> 2) % (end - start + 1)
        if offset == start:
            return None
        index = partition.topic_partition.partition
        self.safety.delete(index, offset)
        partition.log.move_start_to(offset)
        partition.wake_all()
        said = f"{process.id} deletes the records of {index} below {offset}"
        return f"{said}; {self._do_checkpoint(process, how)}" if how & 2 else said

    def _can_reassign(self):
        """Not while a broker has lost records unnoticed: everything may be moved to it by who cannot know better."""
        if self.lost:
            return []
        return [(process, index) for process in self._idle() for index in range(self.shape.partitions)]

    def _do_reassign(self, choice, how):
        process, index = choice
        targets = [None, None, *self._targets]
        target = targets[how % len(targets)]
        if not process.reassign(index, target):
            return None
        return f"{process.id} is asked to {'call off the move of' if target is None else f'move to {target}'} {index}"

    # Followers and leaders.

    def _fetchers(self) -> list[ModelFetcher]:
        return [fetcher for process in self._awake() for fetcher in process.following.fetchers]

    def _can_fetch(self):
        return [
            (fetcher, leader)
            for fetcher in self._fetchers()
            if fetcher.request is None
            and fetcher.answer is None
            and len(fetcher)
            and (leader := self.processes.get(fetcher.leader)) is not None
            and fetcher.leader in fetcher.process.catalog.image.brokers
        ]

    def _do_fetch(self, choice, how):
        fetcher, leader = choice
        request = fetcher.ask(leader)
        if request is None:
            return None
        asked = [
            (one.partition, one.current_leader_epoch, one.fetch_offset, one.last_fetched_epoch)
            for one in request.positions
        ]
        return f"{fetcher.process.id} asks {fetcher.leader} for (partition, epoch, offset, last epoch) {asked}"

    def _requests(self) -> list[Request]:
        asked = [
            fetcher.request
            for process in self.processes.values()
            for fetcher in process.following.fetchers
            if fetcher.request is not None
        ]
        return asked + self.orphans

    def _can_serve(self):
        return [
            request
            for request in self._requests()
            if request.leader.is_serving and not request.leader.is_frozen and self._is_up(request.leader)
        ]

    def _do_serve(self, request, how):
        answer = request.leader.answer_fetch(request)
        who = f"{request.leader.id} serves the fetch of {request.by.broker_id}"
        if request.fetcher is None:
            self.orphans.remove(request)
            return f"{who}, who is gone"
        if how % 4 == 0 and not any(
            piece.records or piece.error_code or piece.diverging_epoch for piece in answer.partitions
        ):
            return f"{who} and keeps it waiting"
        request.fetcher.request, request.fetcher.answer = None, answer
        given = [
            (one.error_code.name, one.diverging_epoch, one.high_watermark, list(one.records))
            for one in answer.partitions
        ]
        return f"{who}: (error, diverging, high watermark, records) {given}"

    def _can_take(self):
        return [fetcher for fetcher in self._fetchers() if fetcher.answer is not None]

    def _do_take(self, fetcher, how):
        fetcher.take()
        return f"{fetcher.process.id} takes the answer of {fetcher.leader}: {self._describe(fetcher.process)}"

    # What brokers hear from the store, and ask of it.

    def _can_hear(self):
        return [
            (process, key)
            for process in self._awake()
            if not process.catalog._current.lock.locked()
            for key in process.unheard_keys()
        ]

    def _do_hear(self, choice, how):
        process, key = choice
        process.hear_of(key)
        return f"{process.id} hears of {key}: {self._describe(process)}"

    def _can_isr(self):
        return [process for process in self._idle() if process.wants_isr()]

    def _do_isr(self, process, how):
        process.change_isr()
        said = f"{process.id} wants another ISR"
        return f"{said}: {self._do_finish(process, how)}" if how % 2 else said

    def _can_report(self):
        return [process for process in self._idle() if process.wants_report()]

    def _do_report(self, process, how):
        process.report()
        said = f"{process.id} reports how long its logs are"
        return f"{said}: {self._do_finish(process, how)}" if how % 2 and process.running is not None else said

    _can_control = ClusterState._idle

    def _do_control(self, process, how):
        return f"{process.id} acts as controller" if process.control(balance=how % 4 == 0) else None

    def _can_answer(self):
        return [process for process in self._awake() if process.running is not None and self._can_be_served(process)]

    def _do_answer(self, process, how):
        call = process.running.call
        is_topic = call.topic_written() is not None
        outcome = (
            {0: "lost", 1: "unanswered", 2: "delayed", 3: "delayed"}.get(how % 12, "answered")
            if is_topic
            else "answered"
        )
        said = f"{process.id}, to {process.running.what}: {call.operation} {self._of(call)} is {outcome}"
        result = self._serve_call(process, outcome)
        return f"{said}{result}: {self._describe(process)}"

    def _can_land(self):
        return self.limbo

    def _do_land(self, call, how):
        self.limbo.remove(call)
        try:
            self._execute(call)
        except (VersionConflict, Fenced) as error:
            return f"a delayed {call.operation} comes too late: {type(error).__name__}"
        return f"a delayed {call.operation} takes effect: {self._of(call)}"

    # Several of these at once, as they mostly come: with them a schedule gets further in as many steps.

    def _can_round(self):
        return [one for one in self._can_fetch() if one[1].is_serving and not one[1].is_frozen]

    def _do_round(self, choice, how):
        fetcher, leader = choice
        request = fetcher.ask(leader)
        if request is None:
            return None
        fetcher.request, fetcher.answer = None, leader.answer_fetch(request)
        fetcher.take()
        return f"{fetcher.process.id} fetches from {leader.id}: {self._describe(fetcher.process)}"

    def _can_catch_up(self):
        return [process for process in self._awake() if not process.catalog._current.lock.locked()]

    def _do_catch_up(self, process, how):
        keys = process.unheard_keys()
        for key in keys:
            process.hear_of(key)
        return f"{process.id} hears of {', '.join(keys)}: {self._describe(process)}" if keys else None

    _can_finish = _can_answer

    def _do_finish(self, process, how):
        what, said = process.running.what, ""
        while process.running is not None and self._can_be_served(process):
            said += f"; {process.running.call.operation} {self._of(process.running.call)}"
            said += self._serve_call(process, "answered")
        return f"{process.id}, to {what}{said}: {self._describe(process)}"
