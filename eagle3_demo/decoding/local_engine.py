"""The engine of this process: one target and its head in memory, any number of requests."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import cast

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

from eagle3_demo.decoding.autoregressive import decode_autoregressive
from eagle3_demo.decoding.events import Speculation, StepEvent
from eagle3_demo.decoding.speculative import decode_speculatively
from eagle3_demo.errors import UserError
from eagle3_demo.models.acceleration import pack_linears
from eagle3_demo.models.chat import Message, encode_chat
from eagle3_demo.models.checkpoint import load_head
from eagle3_demo.models.embedded import embedded_target
from eagle3_demo.models.head import Eagle3Head
from eagle3_demo.models.target import TargetModel
from eagle3_demo.presets import EMBEDDED, find_preset
from eagle3_demo.progress import ProgressCallback, ReadingCallback
from eagle3_demo.settings import GenerationSettings


class LocalEngine:
    """A `DecodingEngine` over models of this process.

    Args:
        target: the frozen target.
        head: its draft head; None decodes plainly, whatever a request asks for, and says so.
        names: how target and head are called in results.
    """

    def __init__(self, target: TargetModel, head: Eagle3Head | None, names: tuple[str, str | None]) -> None:
        self.target, self.head = target, head
        self.target_name, self.head_name = names
        self.device = target.device.type
        self.dtype = target.precision
        self.max_context = target.max_context

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
        if target is not None:
            if preset is not None:
                raise UserError("give either a preset or a target, not both")
            source, target_name, head_source = target, target, head
        else:
            chosen = find_preset(preset) if preset else EMBEDDED
            head_source, target_name = head or chosen.head, chosen.target
            source = chosen.target
            if chosen.embedded:
                source = embedded_target(progress=lambda fraction, text: tell(0.6 * fraction, text))
        model = TargetModel.load(
            source, device=device, dtype=dtype, progress=lambda fraction, text: tell(0.6 + 0.35 * fraction, text)
        )
        loaded = cls(model, None, (target_name, None))
        if head_source is not None:
            tell(0.95, f"Loading the draft head {Path(head_source).name}")
            loaded._take_head(_head_folder(head_source), Path(head_source).name)
        tell(1.0, "Ready")
        return loaded

    def _take_head(self, folder: Path, name: str) -> None:
        head = load_head(folder, vocabulary_size=self.target.vocabulary_size, hidden_size=self.target.hidden_size)
        self.head_name = name
        self.head = head.to(self.target.device, self.target.dtype)
        if self.target.packed:
            pack_linears(self.head)

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
        if self.head is None:
            return Speculation(False, f"no draft head is loaded for {self.target_name}; give one with --head")
        limit = self.head.config.max_position_embeddings
        reason = f"EAGLE-3 with {self.head_name}"
        if limit < self.max_context:
            reason += f"; plain decoding beyond position {limit}, where the head's context ends"
        return Speculation(True, reason)

    def run(
        self,
        prompt_ids: Sequence[int],
        settings: GenerationSettings,
        cancelled: Callable[[], bool] = lambda: False,
        reading: ReadingCallback | None = None,
    ) -> Generator[StepEvent, None, None]:
        """See `DecodingEngine.run`."""
        if self.head is not None and self.speculation(settings).active:
            return decode_speculatively(self.target, self.head, prompt_ids, settings, cancelled, reading)
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
            "give the folder of an EAGLE-3 head (config.json, model.safetensors) or the id of one on the hub"
        ) from error
