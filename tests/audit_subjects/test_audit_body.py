"""Fields of requests that would change what is audited are refused."""

from __future__ import annotations

import pytest

from draftproof.cli.audit_body import request_fields
from draftproof.core.params import SamplingParams
from draftproof.errors import ConfigError

PARAMS = SamplingParams(temperature=0.5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"temperature": 0.7}', "temperature 0.7: the policy says 0.5, expected --temperature"),
        ('{"top_k": 40}', "top_k 40: the policy says 0, expected --top-k"),
        ('{"min_p": "x"}', "min_p 'x': the policy says 0"),
        ('{"seed": 3}', "--body seed: expected none"),
        ('{"max_tokens": 3}', "--body max_tokens: expected none"),
        ("[]", "--body"),
    ],
)
def test_what_the_audit_sets_is_refused(text, message):
    with pytest.raises(ConfigError, match=message):
        request_fields(text, "--body", PARAMS)


def test_fields_at_rest_and_of_the_server_are_sent():
    text = '{"temperature": 0.5, "top_k": -1, "top_p": 1, "min_p": 0.0, "speculate": false}'
    assert request_fields(text, "--body", PARAMS) == {
        "temperature": 0.5, "top_k": -1, "top_p": 1, "min_p": 0.0, "speculate": False,
    }  # fmt: skip
    assert request_fields(None, "--body", PARAMS) == {}
