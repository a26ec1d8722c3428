"""`geofix withdraw`."""

import dataclasses
import getpass
from typing import Annotated

import typer

from flows.cli.command import DONE, Call
from flows.cli.options import command
from flows.cli.printing import print_json
from flows.cli.program import program


def register(app: typer.Typer) -> None:
    """The command."""
    command(
        app,
        "Review",
        [
            'geofix withdraw 5f0c21ab90 --why "a face is visible"',
            'geofix withdraw creator:walker --why "asked by the creator"',
            'geofix withdraw "licence:CC BY-SA 4.0" --why "not ours to publish"',
        ],
    )(withdraw)


def withdraw(
    call: Call,
    what: Annotated[str, typer.Argument(metavar="IMAGE|creator:NAME|licence:NAME", help="What is withdrawn.")],
    why: Annotated[str, typer.Option(metavar="TEXT", help="The reason; it is kept.")],
    who: Annotated[str | None, typer.Option(metavar="NAME", show_default="your login name", help="Who asks.")] = None,
) -> int:
    """Take pictures and everything made of them out of the lake; names the models trained on them."""
    from flows.cli.lake import existing_lake
    from tasks.review.withdraw import withdraw as take_out

    lake = existing_lake(call)
    done = take_out(lake, what, why, who or getpass.getuser())
    if call.as_json:
        print_json(dataclasses.asdict(done))
        return DONE
    if call.quiet:
        return DONE
    rows = ", ".join(f"{count:,} of {table}" for table, count in done.rows.items()) or "none were left"
    print(f"withdrawn   {done.rule} {done.value}: {len(done.image_ids):,} pictures")
    print(f"rows ended  {rows}")
    print(f"files       {done.files:,} deleted")
    if done.models:
        print(f"models      {len(done.models)} were trained on them and still know them; train again or delete:")
        for model in done.models:
            how = f"{model.samples:,} samples" if model.samples else "made from a model above"
            print(f"            {model.model_id}  {model.training_stage:<10} {how}  {model.checkpoint}")
    else:
        print("models      none was trained on them")
    print(f"next        {program()} refresh   a snapshot without them; earlier snapshots leave them out as well")
    return DONE
