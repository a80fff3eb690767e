"""An engine that loads while the page is already up: recorded runs play at once, live runs wait until it is ready."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass

from eagle3_demo.decoding.events import Speculation, StepEvent
from eagle3_demo.engine import DecodingEngine
from eagle3_demo.errors import UserError
from eagle3_demo.progress import ProgressCallback, ReadingCallback
from eagle3_demo.race import start_race
from eagle3_demo.settings import GenerationSettings


@dataclass(frozen=True, slots=True)
class Loading:
    """How far loading is. `error` says in words why it failed."""

    ready: bool = False
    fraction: float = 0.0
    doing: str = "Starting"
    error: str | None = None


class BackgroundEngine:
    """A `DecodingEngine` whose calls wait until the engine behind it is loaded.

    Args:
        load: makes the engine, reporting its progress.
        target_name, head_name: how they are called until they are here.
        failed: told the error when loading fails; the page goes on with its recorded runs.
    """

    def __init__(
        self,
        load: Callable[[ProgressCallback], DecodingEngine],
        target_name: str,
        head_name: str | None,
        failed: Callable[[str], None] = lambda message: None,
    ) -> None:
        self._load, self._failed = load, failed
        self._names = target_name, head_name
        self._engine: DecodingEngine | None = None
        self._done = threading.Event()
        self.state = Loading()

    def start(self) -> None:
        """Begins to load, in a thread of its own."""
        threading.Thread(target=self._run, name="engine-loader", daemon=True).start()

    def _run(self) -> None:
        try:
            self._engine = self._load(self._report)
            self.state = Loading(ready=True, fraction=1.0, doing="Ready")
        except (UserError, OSError, RuntimeError) as error:
            self.state = Loading(error=str(error), doing="Failed")
            self._failed(str(error))
        finally:
            self._done.set()

    def _report(self, fraction: float, doing: str) -> None:
        self.state = Loading(fraction=fraction, doing=doing)

    def wait(self) -> DecodingEngine:
        """The engine, once it is there.

        Raises:
            UserError: it could not be loaded.
        """
        self._done.wait()
        if self._engine is None:
            raise UserError(f"The model could not be loaded: {self.state.error}")
        return self._engine

    @property
    def target_name(self) -> str:
        """See `DecodingEngine`; the expected name before it is loaded."""
        return self._engine.target_name if self._engine else self._names[0]

    @property
    def head_name(self) -> str | None:
        """See `DecodingEngine`; the expected name before it is loaded."""
        return self._engine.head_name if self._engine else self._names[1]

    @property
    def device(self) -> str:
        """See `DecodingEngine`; empty before it is loaded."""
        return self._engine.device if self._engine else ""

    @property
    def dtype(self) -> str:
        """See `DecodingEngine`; empty before it is loaded."""
        return self._engine.dtype if self._engine else ""

    @property
    def max_context(self) -> int:
        """See `DecodingEngine`; waits."""
        return self.wait().max_context

    def encode(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """See `DecodingEngine.encode`; waits."""
        return self.wait().encode(messages)

    def speculation(self, settings: GenerationSettings) -> Speculation:
        """See `DecodingEngine.speculation`; waits."""
        return self.wait().speculation(settings)

    def run(
        self,
        prompt_ids: Sequence[int],
        settings: GenerationSettings,
        cancelled: Callable[[], bool] = lambda: False,
        reading: ReadingCallback | None = None,
    ) -> Generator[StepEvent, None, None]:
        """See `DecodingEngine.run`; waits."""
        return self.wait().run(prompt_ids, settings, cancelled, reading)

    def race(
        self,
        prompt_ids: Sequence[int],
        sides: Mapping[str, GenerationSettings],
        cancelled: Callable[[], bool] = lambda: False,
        reading: ReadingCallback | None = None,
    ) -> Generator[tuple[str, StepEvent], None, None]:
        """See `eagle3_demo.race.start_race`; waits."""
        return start_race(self.wait(), prompt_ids, sides, cancelled, reading)
