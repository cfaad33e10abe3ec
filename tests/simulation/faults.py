"""What goes wrong: brokers die, freeze, lose records or their sessions, connections break, time passes."""

from itertools import combinations

from skep.base.ids import BrokerId
from skep.metadata.layout import broker_key
from tests.simulation.events import Events
from tests.simulation.process import MAX_LAG_MS


class Faults(Events):
    """The steps that break something, and those that bring it back."""

    def _can_cut(self):
        return [fetcher for fetcher in self._fetchers() if fetcher.request is not None or fetcher.answer is not None]

    def _do_cut(self, fetcher, how):
        fetcher.disconnect()
        return f"the connection of {fetcher.process.id} to {fetcher.leader} breaks"

    def _can_tick(self):
        return [MAX_LAG_MS // 5, MAX_LAG_MS + 1]

    def _do_tick(self, milliseconds, how):
        self.clock.advance_ms(milliseconds)
        return f"{milliseconds} ms pass"

    def _can_checkpoint(self):
        return list(self.processes.values())

    def _do_checkpoint(self, process, how):
        process.disk.high_watermarks |= process.replicas.high_watermarks()
        for log in process.disk.logs.values():
            log.checkpoint()
        return f"{process.id} writes its high watermarks and log starts down"

    def _can_crash(self):
        return list(self.processes.values())

    def _do_crash(self, process, how):
        self._end_process(process)
        if how % 2:
            return f"{process.id} dies; its session lingers"
        self._end_session(process.session)
        return f"{process.id} dies, its session with it"

    def _can_lose(self):
        return [process for process in self.processes.values() if self._can_do_without(process.id)]

    def _can_do_without(self, broker: BrokerId) -> bool:
        """Whether each partition has another good copy in its ISR, and will, whatever is on its way to the store."""
        topics = [self.store.topic, *(topic for call in self._writes() if (topic := call.topic_written()) is not None)]
        return all(
            any(other != broker and other not in self.lost for other in record.isr)
            for topic in topics
            for record in topic.partitions
        )

    def _do_lose(self, process, how):
        said = self._do_crash(process, how)
        disk = process.disk
        for topic_partition, log in disk.logs.items():
            disk.lose(topic_partition, (how >> 1) % (log.log_end_offset + 1))
        disk.may_have_lost_data = disk.may_have_lost_synced_data = True
        self.lost[process.id] = self.store.next_broker_epoch - 1
        return f"{said}; its disk loses records, {[len(log.entries) for log in disk.logs.values()]} are left"

    def _can_sync(self):
        return [log for disk in self.disks.values() for log in disk.logs.values() if log.unflushed_records]

    def _do_sync(self, log, how):
        log.sync()
        return f"a log of {log.topic_partition} is synced up to {log.synced}"

    def _can_power(self):
        """Of all brokers, of each one, and of each two."""
        brokers = list(self.disks)
        return [tuple(brokers), *combinations(brokers, 1), *combinations(brokers, 2)]

    def _do_power(self, brokers, how):
        """Those that are down lose what their last process had not synced. Sessions may live on for a while."""
        for broker in brokers:
            if (process := self.processes.get(broker)) is not None:
                self._do_crash(process, how)
            disk = self.disks[broker]
            for topic_partition, log in disk.logs.items():
                # Any of what was not synced may have been written back in time.
                disk.lose(topic_partition, log.synced + (how >> 1) * (broker + 3) % (log.unflushed_records + 1))
            disk.may_have_lost_data = True
            self.lost[broker] = self.store.next_broker_epoch - 1
        for index, record in enumerate(self.store.topic.partitions):
            logs = {broker: disk.held(index) for broker, disk in self.disks.items()}
            self.safety.power_lost(index, logs, hits_isr=set(record.isr) <= set(brokers))
        left = {broker: [len(log.entries) for log in self.disks[broker].logs.values()] for broker in brokers}
        return f"{', '.join(map(str, brokers))} lose power; of their logs there is left {left}"

    def _can_expire(self):
        return [owner for key, owner in self.store.owners.items() if key.startswith("brokers/")]

    def _do_expire(self, session, how):
        is_noticed = all(process.session != session or process.is_frozen for process in self.processes.values())
        if not is_noticed and how % 3:
            return None
        self._end_session(session)
        return f"session {session} ends"

    def _can_depose(self):
        idle = self._idle()
        return [(leader, by) for leader in self.processes.values() if leader.led for by in idle if by is not leader]

    def _do_depose(self, choice, how):
        """A leader that is cut off from the store: another is elected, and it is the last to hear of it."""
        leader, by = choice
        self._end_session(leader.session)
        self._do_catch_up(by, how)
        if by.control(balance=False):
            self._do_finish(by, how)
        return f"session {leader.session} of {leader.id} ends, {by.id} acts: {self._describe(by)}"

    def _can_freeze(self):
        return self._awake()

    def _do_freeze(self, process, how):
        process.is_frozen = True
        return f"{process.id} is frozen"

    def _can_thaw(self):
        return [process for process in self.processes.values() if process.is_frozen]

    def _do_thaw(self, process, how):
        process.is_frozen = False
        return f"{process.id} wakes up"

    def _can_start(self):
        """Those that are down, and those whose session ended while they were up."""
        down = [broker for broker in self.disks if broker not in self.processes]
        outside = [process.id for process in self._idle() if broker_key(process.id) not in self.store.values]
        return down + outside

    def _do_start(self, broker, how):
        if (process := self.processes.get(broker)) is not None:
            self._last_session += 1
            process.session = self._last_session
            process.run("register again", process.rejoin())
            return f"{broker} finds its session ended and registers again"
        process = self._start_process(broker)
        process.run("start", process.start())
        return f"{broker} starts"
