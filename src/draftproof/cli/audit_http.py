"""``draftproof audit http``: any server that answers OpenAI's completions."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from draftproof.cli import audit_engine_modes as m
from draftproof.cli import audit_options as a
from draftproof.cli import options as o
from draftproof.cli.audit_body import request_fields
from draftproof.cli.audit_finish import Outputs, finish, versions
from draftproof.cli.context import CliContext
from draftproof.cli.flat_options import flat
from draftproof.cli.given_options import refuse
from draftproof.errors import ConfigError

if TYPE_CHECKING:
    from draftproof.audit import Evidence
    from draftproof.audit.matrix_evidence import MatrixEvidence
    from draftproof.audit.subjects import OnOffEvidence, Policy
    from draftproof.audit.subjects.http_completions import HttpCompletions

__all__ = ["http"]

SERVER = "Server"
#: Draws of a sample where nobody says: the outcomes are not known beforehand.
_SAMPLE = 4000


class Order(StrEnum):
    """In which order a server applies its filters."""

    DEFAULT = "default"
    LLAMA_CPP = "llama.cpp"
    VLLM = "vllm"


@flat
def http(
    ctx: typer.Context,
    url: Annotated[str, typer.Argument(metavar="URL", help="Such as http://localhost:8000.")],
    name: Annotated[
        str, typer.Option("--model", help="The model's name at the server.", rich_help_panel=SERVER)
    ],
    reference: Annotated[
        str,
        typer.Option(
            "--reference",
            metavar="MODEL|none",
            help="A local copy of the model; none compares speculation on and off.",
        ),
    ],
    off_url: Annotated[
        str | None,
        typer.Option(
            "--off-url",
            metavar="URL2",
            help="The same model without speculation, for --reference none.",
            rich_help_panel=SERVER,
        ),
    ] = None,
    body: Annotated[
        str | None,
        typer.Option(
            "--body", metavar="JSON", help="Fields of every request.", rich_help_panel=SERVER
        ),
    ] = None,
    off_body: Annotated[
        str | None,
        typer.Option(
            "--off-body",
            metavar="JSON",
            help="Fields that turn speculation off, for --reference none.",
            rich_help_panel=SERVER,
        ),
    ] = None,
    order: Annotated[
        Order,
        typer.Option("--filter-order", help="The server's filters.", rich_help_panel=SERVER),
    ] = Order.DEFAULT,
    no_seed: Annotated[
        bool, typer.Option("--no-seed", help="Send no seeds.", rich_help_panel=SERVER)
    ] = False,
    connections: Annotated[
        int, typer.Option("--connections", help="Requests in flight.", rich_help_panel=SERVER)
    ] = 8,
    matrix: m.Matrix = False,
    precision: a.ReferencePrecision = o.Precision.F32,
    common: a.Common = a.Common(),
    more: a.MoreKnobs = a.MoreKnobs(),
) -> None:
    """Audit a server as a black box, by the texts it returns."""
    from draftproof.audit.subjects.http_completions import (
        FILTER_ORDERS,
        HttpCompletions,
        Spelling,
    )
    from draftproof.core.params import SamplingParams

    context: CliContext = ctx.obj
    drafts = common.stated()
    outputs = common.outputs()
    size = common.size()
    size.plan()
    if no_seed:
        refuse(ctx, ["seed"], "of no use with --no-seed")
    policy = a.policy_of(common.horizon, order=FILTER_ORDERS[order.value], **common.knobs(more))
    # A matrix sets each parameter in its turn; the others are at rest.
    audited = SamplingParams() if matrix else policy.params
    extra = request_fields(body, "--body", audited)
    on = HttpCompletions(url, Spelling(name, extra, not no_seed), connections=connections)
    named, horizon = common.named, common.horizon
    if matrix:
        refuse(ctx, [*m.POLICY, "off_url", "off_body"], "of no use with --matrix")
        if reference == "none":
            raise ConfigError("--matrix: expected --reference MODEL, whose laws it compares with")
        filters = policy.params.order
        evidence = _matrix(
            context, outputs, size, on, reference, precision.value, named, horizon, filters
        )
        notes = {**evidence.notes, "drafts": drafts.value}
        evidence = replace(evidence, notes=notes, expects_speculation=drafts.must_show)
        finish(context, replace(evidence, subject=f"the server at {url}"), outputs)
    if reference != "none":
        if off_url is not None or off_body is not None:
            raise ConfigError("--off-url and --off-body are for --reference none")
        found = _against_law(
            context, outputs, size, on, policy, reference, precision.value, named, url
        )
        stated = replace(
            found,
            expects_speculation=drafts.must_show,
            assumes_speculation=drafts.is_assumed,
        )
        finish(context, stated, outputs)
    refuse(ctx, ["precision", "order"], "of no use with --reference none, which needs no model")
    if off_url is None and off_body is None:
        raise ConfigError("--reference none: expected --off-url or --off-body beside it")
    if drafts is a.Drafts.NONE:
        raise ConfigError("--drafts none: of no use with --reference none, on against off")
    switched = extra | request_fields(off_body, "--off-body", audited)
    off = HttpCompletions(
        off_url or url, Spelling(name, switched, not no_seed), connections=connections
    )
    if on.asks_the_same(off, policy):
        raise ConfigError(
            "on and off are the same requests to the same server: expected an --off-url or an "
            "--off-body that turns speculation off"
        )
    compared = _on_off(outputs, size, on, off, policy, named, url)
    notes = {**compared.notes, "drafts": drafts.value}
    finish(
        context,
        replace(compared, notes=notes, expects_speculation=drafts.must_show),
        outputs,
    )


def _against_law(
    context: CliContext,
    outputs: Outputs,
    size: a.AuditSize,
    server: HttpCompletions,
    policy: Policy,
    reference: str,
    precision: str,
    named: a.NamedPrompts,
    url: str,
) -> Evidence:
    """Draw texts and count them against the law of a local copy."""
    from draftproof.audit import Evidence, PromptEvidence
    from draftproof.audit.draw_order import DrawOrder
    from draftproof.audit.subjects.http_completions import text_law
    from draftproof.evidence import count_draws, draw_slots, enumerate_law

    outputs.notes.say(f"loading {reference}")
    with context.load(
        reference,
        speculative_config=None,
        precision=precision,
        cache_dir=context.cache_dir,
        progress=outputs.notes.say,
    ) as engine:
        core, tokenizer = engine.core, engine.tokenizer
        asked = a.prompts_of(*named, tokenizer)
        laws = [
            text_law(
                enumerate_law(
                    core.target,
                    p.ids,
                    policy.params,
                    policy.horizon,
                    eos_token_ids=core.eos_token_ids,
                ),
                tokenizer.decode,
            )
            for p in asked
        ]
        held = a.reference_note(reference, core.target.info)
    num, first = size.draws_for(max(len(each.law) for each in laws)), size.first_seed()
    outputs.notes.say(f"{num} requests for each of {len(asked)} prompts")
    parts, notes = [], {}
    for index, (p, each) in enumerate(zip(asked, laws, strict=True)):
        what = p.ids if p.text is None else p.text
        texts, told = server.answers(what, policy, num, first + index * num)
        drawn = each.outcomes(texts)
        counts = count_draws(each.law, drawn)
        slots = [len(each.law) if slot < 0 else slot for slot in draw_slots(each.law, drawn)]
        order = DrawOrder.of(slots)
        parts.append(PromptEvidence(p.name, each.law, counts, totals=told, order=order))
        notes[f"texts of {p.name!r}"] = repr(list(each.texts))
    return Evidence(
        f"the server at {url}",
        size.plan(),
        tuple(parts),
        notes=notes
        | {
            "seeds": server.seeds_from(first),
            "reference": held,
            "versions": versions(),
        },
    )


def _matrix(
    context: CliContext,
    outputs: Outputs,
    size: a.AuditSize,
    server: HttpCompletions,
    reference: str,
    precision: str,
    named: a.NamedPrompts,
    horizon: int,
    order: tuple[str, ...],
) -> MatrixEvidence:
    """Ask for every parameter, against the laws of a local copy in the server's order."""
    from draftproof.audit.matrix_run import groups_of, run_matrix
    from draftproof.audit.matrix_subjects import ServerMatrix, best_next_tokens

    outputs.notes.say(f"loading {reference}")
    with context.load(
        reference,
        speculative_config=None,
        precision=precision,
        cache_dir=context.cache_dir,
        progress=outputs.notes.say,
    ) as engine:
        target, tokenizer = engine.core.target, engine.tokenizer
        asked = a.prompts_of(*named, tokenizer, a.DEFAULT_PROMPTS[:1])
        if len(asked) > 1:
            raise ConfigError(f"{len(asked)} prompts with --matrix: expected one")
        prompt = asked[0]
        what = prompt.ids if prompt.text is None else prompt.text
        subject = ServerMatrix(server, target, tokenizer.decode, what, prompt.ids, order)
        # Whether a text shows its end token differs from server to server.
        ranked = best_next_tokens(target, prompt.ids)
        groups = groups_of(subject, ranked, horizon, without=["min_tokens"])
        first = size.first_seed()
        evidence = run_matrix(
            subject,
            "the server",
            size.plan(),
            groups,
            horizon=horizon,
            first_seed=first,
            draws=size.draws,
            say=outputs.notes.say,
        )
        held = a.reference_note(reference, target.info)
    notes = {"prompt": prompt.name, "seeds": server.seeds_from(first), "reference": held}
    notes |= {"filter order": ", ".join(order), "versions": versions()}
    return replace(evidence, notes=notes)


def _on_off(
    outputs: Outputs,
    size: a.AuditSize,
    on: HttpCompletions,
    off: HttpCompletions,
    policy: Policy,
    named: a.NamedPrompts,
    url: str,
) -> OnOffEvidence:
    from draftproof.audit.subjects import OnOffEvidence, TextCounts

    asked = a.prompts_of(*named, None)
    num = _SAMPLE if size.draws is None else size.draws_for(2)
    first = size.first_seed()
    outputs.notes.say(f"{2 * num} requests for each of {len(asked)} prompts")
    parts = []
    for index, p in enumerate(asked):
        what = p.ids if p.text is None else p.text
        begin = first + 2 * index * num
        with_drafts, drafts_on = on.answers(what, policy, num, begin)
        # Other seeds: a decoder whose text depends on the seed alone must not look exact.
        without, drafts_off = off.answers(what, policy, num, begin + num)
        parts.append(TextCounts.of(p.name, with_drafts, without, drafts_on, drafts_off))
    notes = {"seeds": on.seeds_from(first), "versions": versions()}
    return OnOffEvidence(f"the server at {url}", size.plan(), tuple(parts), notes)
