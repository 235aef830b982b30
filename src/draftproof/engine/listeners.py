"""Who is told what an engine takes in and gives out."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from draftproof.engine.request import GenerateRequest, StepOutput

__all__ = ["Listener", "Listeners"]


class Listener(Protocol):
    """Told of every request and of every output.

    What it raises ends the step, and with it every request that runs: a listener that
    may fail keeps its errors to itself.
    """

    @property
    def wants_traces(self) -> bool:
        """Whether all requests are traced for it, also those that did not ask."""
        ...

    def on_request(self, request: GenerateRequest) -> None:
        """Hear of a request as it enters, with its id, rule and drafter filled in.

        Parameters
        ----------
        request : GenerateRequest
            The request. Called by whoever submits, from any thread.
        """
        ...

    def on_output(self, output: StepOutput) -> None:
        """Hear of an output, before whoever waits for it does.

        Parameters
        ----------
        output : StepOutput
            The output. Outputs of one request come in order.
        """
        ...


class Listeners:
    """The listeners of one engine; most engines have none."""

    def __init__(self) -> None:
        self._held: tuple[Listener, ...] = ()

    def add(self, listener: Listener) -> None:
        """Tell one more, from the next request on."""
        self._held = (*self._held, listener)

    def remove(self, listener: Listener) -> None:
        """Tell one no more; unknown ones are ignored."""
        self._held = tuple(held for held in self._held if held is not listener)

    def traced(self, request: GenerateRequest) -> GenerateRequest:
        """Return a request as the engine runs it: traced if anybody wants that."""
        if any(listener.wants_traces for listener in self._held):
            return replace(request, trace=True)
        return request

    def on_request(self, request: GenerateRequest) -> None:
        """Tell all of a request."""
        for listener in self._held:
            listener.on_request(request)

    def on_output(self, output: StepOutput) -> None:
        """Tell all of an output."""
        for listener in self._held:
            listener.on_output(output)
