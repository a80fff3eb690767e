"""`deploy-space` puts the demo on a Hugging Face Space, or says what that would do."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from eagle3_demo.cli.console import note, output
from eagle3_demo.errors import UserError
from eagle3_demo.space.deploy import LARGE, deploy, make_plan


def deploy_space(
    name: Annotated[str, typer.Argument(help="OWNER/NAME of the Space.", metavar="OWNER/NAME")],
    hardware: Annotated[str | None, typer.Option(help="Flavour, such as cpu-basic or t4-small.")] = None,
    private: Annotated[bool, typer.Option("--private", help="Only you can see a new Space.")] = False,
    variable: Annotated[list[str] | None, typer.Option(help="NAME=VALUE for the Space; repeatable.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list what would be uploaded, and check it.")] = False,
) -> None:
    """Create or update a Hugging Face Space with this demo, wait until it runs, print its address."""
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        raise typer.BadParameter(f"{name!r} is not OWNER/NAME", param_hint="OWNER/NAME")
    variables = dict(_variable(text) for text in variable or [])
    plan = make_plan()
    if dry_run:
        console = output()
        for path, size in plan.files:
            mark = "  large object" if size >= LARGE else ""
            console.print(f"{size:>12,}  {path}{mark}", markup=False, soft_wrap=True)
        console.print(f"{plan.size:>12,}  bytes in {len(plan.files)} files for {name}")
        for problem in plan.problems:
            console.print(f"Problem: {problem}", markup=False)
        if plan.problems:
            raise typer.Exit(1)
        return
    from huggingface_hub import HfApi, get_token
    from huggingface_hub.errors import HfHubHTTPError

    if get_token() is None:
        raise UserError(
            "no Hugging Face token is at hand: run `hf auth login`, or set HF_TOKEN to one with write access"
        )
    try:
        address = deploy(HfApi(), name, plan, hardware=hardware, private=private, variables=variables)
    except HfHubHTTPError as error:
        raise UserError(f"the hub refused to deploy {name}: {error}") from error
    note(f"{len(plan.files)} files, {plan.size / 1e6:.0f} MB")
    print(address)


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise typer.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--variable")
    return name, value
