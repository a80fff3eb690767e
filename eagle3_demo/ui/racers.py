"""Who can race: plain decoding, EAGLE-3 with the tree of the settings, and a few trees that show what the size does."""

from __future__ import annotations

from typing import NamedTuple

from eagle3_demo.settings import GenerationSettings, TreeSettings


class Racer(NamedTuple):
    """A way to decode; `tree` is None where that of the settings is taken."""

    name: str
    label: str
    drafts: bool
    tree: TreeSettings | None = None

    def applied(self, settings: GenerationSettings) -> GenerationSettings:
        """The settings with this way to decode, told to explain itself."""
        changes: dict[str, object] = {"method": "eagle3" if self.drafts else "autoregressive", "explain": True}
        return settings.model_copy(update=changes | ({"tree": self.tree} if self.tree else {}))


RACERS = {
    racer.name: racer
    for racer in (
        Racer("plain", "Plain decoding", drafts=False),
        Racer("eagle3", "EAGLE-3, tree of the settings", drafts=True),
        Racer("one-guess", "EAGLE-3, one guess at a time", drafts=True, tree=TreeSettings(nodes=2, depth=1, top_k=1)),
        Racer("chain", "EAGLE-3, a chain of four", drafts=True, tree=TreeSettings(nodes=5, depth=4, top_k=1)),
        Racer("bush", "EAGLE-3, a tree too large", drafts=True, tree=TreeSettings(nodes=48, depth=6, top_k=8)),
        Racer("spoiled", "EAGLE-3, two guesses in three spoiled", drafts=True, tree=TreeSettings(spoiled=0.67)),
    )
}
