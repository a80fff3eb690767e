"""The engine of this process: one target and its heads in memory, any number of requests."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from threading import Lock
from typing import cast

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

from eagle3_demo.decoding.autoregressive import decode_autoregressive
from eagle3_demo.decoding.events import Speculation, StepEvent
from eagle3_demo.decoding.speculative import decode_speculatively
from eagle3_demo.decoding.tree_choice import Knowledge
from eagle3_demo.decoding.tree_costs import measure_costs
from eagle3_demo.errors import UserError
from eagle3_demo.models.chat import Message, encode_chat
from eagle3_demo.models.checkpoint import load_draft_head
from eagle3_demo.models.draft_head import DraftHead
from eagle3_demo.models.embedded import embedded_target
from eagle3_demo.models.target import TargetModel
from eagle3_demo.presets import EMBEDDED, find_preset
from eagle3_demo.progress import ProgressCallback, ReadingCallback
from eagle3_demo.settings import METHOD_NAMES, METHODS, GenerationSettings, Method


class LocalEngine:
    """A `DecodingEngine` over models of this process.

    Args:
        target: the frozen target.
        heads: its draft heads with their names, by the method they draft for; without one for its method a request is
            decoded plainly, and that is said.
        target_name: how the target is called in results.
    """

    def __init__(self, target: TargetModel, heads: dict[Method, tuple[str, DraftHead]], target_name: str) -> None:
        self.target, self.heads, self.target_name = target, heads, target_name
        self.device = target.device.type
        self.dtype = target.precision
        self.max_context = target.max_context
        self._knowledge: dict[Method, Knowledge] = {}
        self._measuring = Lock()

    @classmethod
    def load(
        cls,
        preset: str | None,
        target: str | None,
        head: str | None,
        *,
        device: str,
        dtype: str,
        progress: ProgressCallback | None,
    ) -> LocalEngine:
        """See `eagle3_demo.engine.load_engine`."""
        tell = progress or (lambda fraction, text: None)
        source: str | Path
        own_heads: dict[Method, str] = {}
        if target is not None:
            if preset is not None:
                raise UserError("give either a preset or a target, not both")
            source, target_name = target, target
        else:
            chosen = find_preset(preset) if preset else EMBEDDED
            own_heads = {"eagle3": chosen.head}
            if chosen.eagle2_head and (Path(chosen.eagle2_head) / "model.safetensors").is_file():
                own_heads["eagle2"] = chosen.eagle2_head
            source, target_name = chosen.target, chosen.target
            if chosen.embedded:
                source = embedded_target(progress=lambda fraction, text: tell(0.6 * fraction, text))
        model = TargetModel.load(
            source, device=device, dtype=dtype, progress=lambda fraction, text: tell(0.6 + 0.35 * fraction, text)
        )
        loaded = cls(model, {}, target_name)
        tell(0.95, "Loading the draft heads")
        if head:
            loaded._take_head(head)
        for method, own_head in own_heads.items():
            if method not in loaded.heads:
                loaded._take_head(own_head)
        if "eagle3" in loaded.heads:
            tell(0.97, "Timing target and head, to choose draft trees by their cost")
            loaded._knowledge_of("eagle3")
        tell(1.0, "Ready")
        return loaded

    def _take_head(self, source: str) -> None:
        head = load_draft_head(_head_folder(source), self.target)
        self.heads[head.method] = (Path(source).name, head)

    def _knowledge_of(self, method: Method) -> Knowledge:
        """What choosing trees for a method's head needs; times are measured once, when first needed."""
        with self._measuring:
            if method not in self._knowledge:
                self._knowledge[method] = Knowledge(measure_costs(self.target, self.heads[method][1]))
            return self._knowledge[method]

    @property
    def head_name(self) -> str | None:
        """The EAGLE-3 head's name, or that of the only head there is."""
        return next((self.heads[method][0] for method in METHODS if method in self.heads), None)

    def encode(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """See `DecodingEngine.encode`."""
        ids = encode_chat(self.target.tokenizer, cast(Sequence[Message], messages))
        if len(ids) >= self.max_context:
            raise UserError(
                f"the conversation has {len(ids)} tokens and {self.target_name} reads at most {self.max_context - 1}; "
                "shorten the prompt or start a new conversation"
            )
        return ids

    def speculation(self, settings: GenerationSettings) -> Speculation:
        """See `DecodingEngine.speculation`."""
        if settings.method == "autoregressive":
            return Speculation(False, "plain decoding was asked for")
        method = METHOD_NAMES[settings.method]
        if settings.method not in self.heads:
            return Speculation(False, f"no {method} head is loaded for {self.target_name}; give one with --head")
        name, head = self.heads[settings.method]
        limit = head.config.max_position_embeddings
        reason = f"{method} with {name}"
        if limit < self.max_context:
            reason += f"; plain decoding beyond position {limit}, where the head's context ends"
        return Speculation(True, reason, name)

    def run(
        self,
        prompt_ids: Sequence[int],
        settings: GenerationSettings,
        cancelled: Callable[[], bool] = lambda: False,
        reading: ReadingCallback | None = None,
    ) -> Generator[StepEvent, None, None]:
        """See `DecodingEngine.run`."""
        if self.speculation(settings).active:
            _, head = self.heads[settings.method]
            knowledge = self._knowledge_of(settings.method) if settings.tree.nodes == "auto" else None
            return decode_speculatively(self.target, head, prompt_ids, settings, cancelled, reading, knowledge)
        return decode_autoregressive(self.target, prompt_ids, settings, cancelled, reading)


def _head_folder(source: str) -> Path:
    """A local folder, or the hub's files of a head."""
    if Path(source).is_dir():
        return Path(source)
    try:
        return Path(snapshot_download(source, allow_patterns=["config.json", "*.safetensors"]))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise UserError(
            f"head {source!r} is no local folder and cannot be fetched from the hub ({type(error).__name__}); "
            "give the folder of an EAGLE head (config.json, model.safetensors) or the id of one on the hub"
        ) from error
