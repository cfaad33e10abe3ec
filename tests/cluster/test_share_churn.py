"""Share groups through kills of everything: no record is lost, none is accepted twice, counts do not go back, what dies
has one dead letter, and the group that asks for it gets the records of each key in order, one at a time.

Three brokers, six workers of two groups in processes of their own, and a producer. What the workers write down is
judged afterwards by ``share_history.py``, which knows nothing of the broker.
"""

import random
from pathlib import Path

import pytest

from tests.cluster.coordinators import assert_no_bug_was_logged
from tests.cluster.share_churn import FAULTS, LIMIT, ORDERED, churning, key_of
from tests.lengths import times

pytestmark = pytest.mark.xdist_group(__name__)

SEED = 11


@pytest.mark.long
def test_every_record_is_accepted_once_through_kills_of_everything(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    faults = [fault for _ in range(times(1, 12)) for fault in (*FAULTS, *chance.choices(list(FAULTS), k=times(0, 12)))]
    with churning(tmp_path, SEED) as churn:
        for fault in faults:
            churn.do(fault)
        histories = churn.finish()
        dead_letters = churn.dead_letters()
        for group, history in histories.items():
            order = key_of if group == ORDERED else None
            violations = history.violations(
                churn.jobs.written, LIMIT, churn.leader_changes(), dead_letters[group], order
            )
            assert not violations, (
                f"{group}: {violations} after {churn.faults}; {churn.crashed} crashed, {churn.jobs.unplaced} without "
                f"an offset; what the workers noted is in {tmp_path}"
            )
        assert_no_bug_was_logged(churn.cluster)
    assert len(churn.jobs.written) > 500
    for group, history in histories.items():
        assert history.confirmed_count >= 0.5 * len(churn.jobs.written)
        assert dead_letters[group], "workers have rejected some"
