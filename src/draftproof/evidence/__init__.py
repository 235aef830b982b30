"""What draws say about a law: reference laws, calibrated tests, power, localisation.

Everything here turns counts into numbers with a stated error rate. It knows no decoder,
no drafter and no verification rule; models are reached through the protocol of the core.
"""

from draftproof.evidence.calibration import Calibrations, discrepancies
from draftproof.evidence.estimate import TvEstimate, estimate_tv
from draftproof.evidence.fixed_budget import (
    CombinedTest,
    FixedBudgetTest,
    combine,
    empirical_tv,
    fixed_budget_test,
)
from draftproof.evidence.independence import (
    DependenceTest,
    dependence_test,
    duplicate_test,
    serial_test,
)
from draftproof.evidence.joint_law import Counts, JointLaw, Outcome, count_draws, draw_slots
from draftproof.evidence.lags import LagTest, equal_draws, pairs_learnt
from draftproof.evidence.localise import (
    NodeTest,
    OffsetTest,
    RoundSample,
    holm,
    localise,
    next_token_laws,
    offset_tests,
)
from draftproof.evidence.power import (
    Power,
    draws_needed,
    draws_to_detect,
    power_of_fixture,
    smallest_detectable,
)
from draftproof.evidence.reference import enumerate_law
from draftproof.evidence.repeats import RepeatedBlock, repeated_block, shared_block
from draftproof.evidence.sequential import SequentialAudit, combine_log_e, log_e_value
from draftproof.evidence.stream import StreamAudit, StreamBets
from draftproof.evidence.two_sample import TwoSampleTest, two_sample_counts, two_sample_test

__all__ = [
    "Calibrations",
    "CombinedTest",
    "Counts",
    "DependenceTest",
    "FixedBudgetTest",
    "JointLaw",
    "LagTest",
    "NodeTest",
    "OffsetTest",
    "Outcome",
    "Power",
    "RepeatedBlock",
    "RoundSample",
    "SequentialAudit",
    "StreamAudit",
    "StreamBets",
    "TvEstimate",
    "TwoSampleTest",
    "combine",
    "combine_log_e",
    "count_draws",
    "dependence_test",
    "discrepancies",
    "draw_slots",
    "draws_needed",
    "draws_to_detect",
    "duplicate_test",
    "empirical_tv",
    "enumerate_law",
    "equal_draws",
    "estimate_tv",
    "fixed_budget_test",
    "holm",
    "localise",
    "log_e_value",
    "next_token_laws",
    "offset_tests",
    "pairs_learnt",
    "power_of_fixture",
    "repeated_block",
    "serial_test",
    "shared_block",
    "smallest_detectable",
    "two_sample_counts",
    "two_sample_test",
]
