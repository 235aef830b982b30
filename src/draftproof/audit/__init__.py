"""Verdicts on decoders: is the law right, how sure is that, and if not, which fault is it.

`draftproof.evidence` turns counts into statistics. This room adds what is known about
speculative decoding: the rules and their faults as laws that can be enumerated, the
acceptance a rule promises, and the certificate that holds it all together.
"""

from draftproof.audit.acceptance import (
    AcceptanceAudit,
    RoundLog,
    audit_acceptance,
    block_optimum,
    most_accepted,
    token_optimum,
)
from draftproof.audit.certificate import Certificate, recompute
from draftproof.audit.diagnose import Candidate, Diagnosis, candidates_of, diagnose
from draftproof.audit.draft_totals import DraftTotals
from draftproof.audit.evidence_file import SCHEMA, Evidence, ModelRows, Plan, PromptEvidence
from draftproof.audit.fault import Fault
from draftproof.audit.faults import EXACT, FAULTS, fault_named
from draftproof.audit.rounds import Tables, decode_law, plain_law, round_laws
from draftproof.audit.self_test import FaultScore, self_test
from draftproof.audit.verdict import Verdict, judge

__all__ = [
    "EXACT",
    "FAULTS",
    "SCHEMA",
    "AcceptanceAudit",
    "Candidate",
    "Certificate",
    "Diagnosis",
    "DraftTotals",
    "Evidence",
    "Fault",
    "FaultScore",
    "ModelRows",
    "Plan",
    "PromptEvidence",
    "RoundLog",
    "Tables",
    "Verdict",
    "audit_acceptance",
    "block_optimum",
    "candidates_of",
    "decode_law",
    "diagnose",
    "fault_named",
    "judge",
    "most_accepted",
    "plain_law",
    "recompute",
    "round_laws",
    "self_test",
    "token_optimum",
]
