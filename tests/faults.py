"""Deliberate faults in the protocol, to see that the verdict notices them."""

from keyshift.protocol.slot import Installed, Prepared, SlotMachine, _ActiveStep


class SkipAlignment(SlotMachine):  # type: ignore[type-arg]
    """Hands a unit over at the first router's barrier: records of the others still come and find no state.

    The shell then works on a second, empty state; nothing here notices, so that the job completes and the verdict must.
    """

    def _ready(self, step: _ActiveStep) -> bool:
        return self._switched(step)

    def admit(self, router, version, units):  # type: ignore[no-untyped-def]
        """Takes everything, as a slot without checks would."""
        return {unit for unit in units if unit in self._queues}


class InstallEarly(SlotMachine):  # type: ignore[type-arg]
    """Serves arriving units at once, from nothing, instead of waiting for their state."""

    def admit(self, router, version, units):  # type: ignore[no-untyped-def]
        """Lets records of expected units through."""
        super().admit(router, version, units)
        return frozenset()


class NeverPrepared(SlotMachine):  # type: ignore[type-arg]
    """Does not say that it is ready: no step ever switches."""

    def prepare(self, version, step, before=0):  # type: ignore[no-untyped-def]
        """Prepares, and keeps it to itself."""
        return [effect for effect in super().prepare(version, step, before) if not isinstance(effect, Prepared)]


class NeverInstalled(SlotMachine):  # type: ignore[type-arg]
    """Does not say that what arrived is installed: the step never ends."""

    def _advance(self, touched=()):  # type: ignore[no-untyped-def]
        return [effect for effect in super()._advance(touched) if not isinstance(effect, Installed)]


MACHINES: dict[str, type[SlotMachine]] = {  # type: ignore[type-arg]
    "skip_alignment": SkipAlignment,
    "install_early": InstallEarly,
    "never_prepared": NeverPrepared,
    "never_installed": NeverInstalled,
}
