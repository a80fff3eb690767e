"""Writes assets/training/curve.json from the metrics of training runs, for the page's Training tab.

Run as `python -m tools.learning_curve RUN [RUN …] --about "what was trained where, on how much data"`; a run folder is
one that `train` made, and may be given as `NAME=FOLDER`.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from eagle3_demo.errors import UserError
from eagle3_demo.files import write_atomically
from eagle3_demo.training.figures import LearningCurves
from eagle3_demo.training.scaling import learning_curve

OUT = Path(__file__).resolve().parent.parent / "assets" / "training" / "curve.json"


def main() -> None:
    """Reads, checks, writes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run folder, or NAME=FOLDER")
    parser.add_argument("--about", required=True, help="what was trained where, on how much data")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    curves = []
    try:
        for run in options.runs:
            name, _, folder = run.rpartition("=")
            curves.append(learning_curve(name or Path(folder).name, Path(folder)))
    except UserError as error:
        sys.exit(f"Error: {error}")
    measured = LearningCurves.model_validate({"about": options.about, "curves": curves})
    text = json.dumps(measured.model_dump(mode="json"), indent=1, ensure_ascii=False) + "\n"
    write_atomically(options.out, lambda path: path.write_text(text, encoding="utf-8"))
    print(options.out)


if __name__ == "__main__":
    main()
