"""The command line's frame: commands, exit codes, and what becomes of mistakes.

Exit codes: 0 done; 1 something is missing or damaged, and the message says what to do, or the reader of stdout left;
2 wrong arguments, in one line that names the argument; 130 interrupted. Only a fault of this program shows a traceback.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence

import typer

from eagle3_demo.cli import benchmark, doctor, generate, scaling, space, training, viewer
from eagle3_demo.cli.console import close_quietly, make_streams_forgiving
from eagle3_demo.errors import UserError

app = typer.Typer(
    name="python -m eagle3_demo",
    help="EAGLE-3 speculative decoding on a real model: generate, compare, measure, train.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for command in (
    generate.generate,
    generate.compare,
    benchmark.benchmark,
    doctor.doctor,
    doctor.fetch,
    training.corpus,
    training.train,
    scaling.scaling,
    viewer.record_traces,
    viewer.export_viewer,
    space.deploy_space,
):
    app.command()(command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code.

    Args:
        arguments: without the program's name; None takes those of this process.
    """
    make_streams_forgiving()
    # Being told to end is an interruption like Ctrl+C: what was collected so far is written first.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        code = app(args=arguments, standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except typer.TyperException as error:
        # Typer checks choices by pydantic, which prefixes its own messages.
        return _complain(error.format_message().replace("Value error, ", ""), error.exit_code)
    except UserError as error:
        return _complain(str(error), 1)
    except BrokenPipeError:
        close_quietly(sys.stdout)
        return 1
    except (KeyboardInterrupt, typer.Abort):
        return _complain("interrupted", 130)


def _complain(message: str, code: int) -> int:
    if line := " ".join(message.split()):
        print(f"Error: {line}", file=sys.stderr)
    return code
