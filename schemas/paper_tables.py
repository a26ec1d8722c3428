"""A paper's tables and figures, from `tables.yaml` of its recipe's folder: printed figures and each row's settings."""

from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from schemas.errors import InputError
from schemas.recipes import SETTINGS, package_places

FILE = "tables.yaml"
Figure = float | None  # None: the paper prints none
Kind = Literal["table", "figure"]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Column(_Part):
    """A column: where ours comes from (`tasks/evaluate/reproduction.py` reads it), times a factor for another unit."""

    of: str
    times: float = 1.0


class PictureSet(_Part):
    """Pictures that a group of columns is about."""

    name: str
    source: str | None = Field(None, description="the ingested dataset's name; null: the lake's benchmark")
    slice: str | None = Field(None, description="a part of them, such as tier=easy")


class RoleSetting(_Part):
    """The setting of a row that names a model, which `--model ROW=ROLE` fills; null: the row has to be given one."""

    setting: str
    default: str | None = None


class TableRow(_Part):
    """A row: the model that answers, the settings that make it what it is, and the printed figures."""

    name: str
    policy: Literal["base", "sft", "cold_start", "grpo"] | None = Field(
        None, description="base model or phase that answers; null: another system's row, for which --model names a role"
    )
    answer: str | None = Field(
        None, description="of an evaluation that asks several times: verifier@4, best@4, swarm …"
    )
    settings: dict[str, Any] = Field(default_factory=dict, description="section.field: value")
    by_profile: dict[str, dict[str, Any]] = Field(default_factory=dict, description="further settings of a profile")
    shares: dict[str, float] = Field(default_factory=dict, description="setting: share of the value it has otherwise")
    role: RoleSetting | None = None
    of: dict[str, Any] = Field(default_factory=dict, description="what {name} in the columns stands for")
    printed: tuple[Figure, ...] = ()


class PaperTable(_Part):
    """A table or a figure."""

    table: str | None = None
    figure: str | None = None
    title: str
    cannot: str | None = Field(None, description="why it is not run; null: it is")
    sets: tuple[PictureSet, ...] = (PictureSet(name="the lake's benchmark"),)
    columns: dict[str, Column] = Field(default_factory=dict)
    settings: dict[str, Any] = Field(default_factory=dict, description="of every row")
    measures: Literal["answers", "difficulty", "training"] = Field(
        "answers", description="which stage's figures it shows"
    )
    rows: tuple[TableRow, ...] = ()
    notes: tuple[str, ...] = Field((), description="what a reader has to know of rows and printed figures")

    @model_validator(mode="before")
    @classmethod
    def _short_forms(cls, value: Any) -> Any:
        """Numbers as names, and a column that is only where it comes from."""
        expanded = dict(value)
        for kind in ("table", "figure"):
            if isinstance(expanded.get(kind), int):
                expanded[kind] = str(expanded[kind])
        columns = expanded.get("columns") or {}
        expanded["columns"] = {
            name: {"of": column} if isinstance(column, str) else column for name, column in columns.items()
        }
        return expanded

    @model_validator(mode="after")
    def _whole(self) -> "PaperTable":
        if (self.table is None) == (self.figure is None):
            raise ValueError(f"'{self.title}': name a table or a figure")
        if self.cannot is None and not (
            self.columns and any(row.policy or row.answer or row.role for row in self.rows)
        ):
            raise ValueError(f"{self.label}: has nothing to run and no reason why not")
        width = len(self.sets) * len(self.columns)
        for row in self.rows:
            if row.printed and len(row.printed) != width:
                raise ValueError(f"{self.label}, row '{row.name}': {len(row.printed)} figures for {width} columns")
        names = [row.name for row in self.rows]
        if len(set(names)) != len(names):
            raise ValueError(f"{self.label}: two rows have one name")
        return self

    @property
    def kind(self) -> Kind:
        return "table" if self.table else "figure"

    @property
    def number(self) -> str:
        return self.table or self.figure or ""

    @property
    def label(self) -> str:
        """`Table 3`, as papers and people call it."""
        return f"{self.kind.capitalize()} {self.number}"


class PaperNumber(_Part):
    """A number of a paper's settings or sizes, and where ours is: a setting, a constant of the code, or always so."""

    of: str = Field(description="table or section that prints it")
    name: str
    printed: Any
    setting: str | None = Field(None, description="section.field; a list is counted where one number is printed")
    constant: str | None = Field(None, description="module and name, such as tasks.geo.distance EARTH_RADIUS_KM")
    fixed: Any = Field(None, description="what the code does whatever the settings")
    differs: str | None = Field(None, description="why ours is another, in words of docs/papers.md")

    @model_validator(mode="after")
    def _one_place(self) -> "PaperNumber":
        if sum(source is not None for source in (self.setting, self.constant, self.fixed)) != 1:
            raise ValueError(f"'{self.name}' of {self.of}: name a setting, a constant or what is fixed")
        return self


class PaperSizes(_Part):
    """Pictures that the paper's experiments are over, from which costs are estimated where the lake has none."""

    train: int
    benchmark: int
    learnable: int | None = Field(None, description="of those to train on that Pass@K keeps; null: all")
    trajectories: int | None = Field(None, description="that rejection sampling keeps; null: all")


class Paper(_Part):
    """A paper, the conditions of its experiments in words, and its tables and figures."""

    title: str
    model: str = Field(description="what its authors train")
    data: str = Field(description="what they train it on")
    world: str = Field(description="the services that its tools and rewards ask")
    sizes: PaperSizes | None = None
    numbers: tuple[PaperNumber, ...] = ()
    tables: tuple[PaperTable, ...]

    def find(self, kind: Kind, number: str) -> PaperTable:
        """The table or figure of this number; InputError with those that there are."""
        mine = [table for table in self.tables if table.kind == kind]
        matches = [table for table in mine if table.number == number]
        if not matches:
            parts = [table.number for table in mine if table.number.startswith(f"{number}-")]
            known = ", ".join(parts or [table.number for table in mine])
            raise InputError(f"--{kind} {number}: {'it has parts' if parts else 'the paper has'} {known}")
        return matches[0]


def papers() -> dict[str, Path]:
    """The folder of every paper's tables, by the recipe's name."""
    files = (file for place in package_places() for file in place.glob(f"*/{FILE}"))
    return {file.parent.name.replace("_", "-"): file.parent for file in sorted(files)}


def is_recipe(name: str) -> bool:
    """Whether the paper's folder has settings, without which nothing of it can be run."""
    return (papers()[name] / SETTINGS).is_file()


@cache
def load_paper(name: str) -> Paper:
    """The tables of a recipe's paper."""
    folders = papers()
    if name not in folders:
        raise InputError(f"there is no paper '{name}'; there are {', '.join(folders)}")
    path = folders[name] / FILE
    try:
        return Paper.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except (yaml.YAMLError, ValidationError) as error:
        raise InputError(f"{path.parent.name}/{FILE}: {error}") from None
