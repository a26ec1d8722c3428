"""Where processes go on a cluster's nodes: the plan that `--dry-run` prints and that a start is checked against."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from schemas.errors import GeofixError

Amounts = Mapping[str, float]


@dataclass(frozen=True)
class Wanted:
    """Processes of one kind, each of which lies on one node."""

    name: str
    count: int
    each: Amounts  # such as {"CPU": 1, "GPU": 1}
    fix: str  # what to change where they do not fit


def place(wanted: Sequence[Wanted], nodes: Mapping[str, Amounts]) -> dict[str, dict[str, int]]:
    """Of each kind how many go to each node, nodes filled one after another; GeofixError where they do not fit."""
    left = {node: dict(amounts) for node, amounts in nodes.items()}
    plan: dict[str, dict[str, int]] = {}
    for kind in wanted:
        by_node = plan.setdefault(kind.name, {})
        for _ in range(kind.count):
            node = next(
                (n for n, have in left.items() if all(have.get(k, 0.0) >= v - 1e-9 for k, v in kind.each.items())), None
            )
            if node is None:
                raise GeofixError(
                    f"{kind.count} x {kind.name} need {amounts_text(kind.each)} each, and the cluster has "
                    f"{nodes_text(nodes)}: there is room for {sum(by_node.values())}; {kind.fix}"
                )
            for name, amount in kind.each.items():
                left[node][name] -= amount
            by_node[node] = by_node.get(node, 0) + 1
    return plan


def amounts_text(amounts: Amounts) -> str:
    """Such as "2 CPUs and 1 GPU"."""
    parts = [f"{value:g} {name}{'' if value == 1 else 's'}" for name, value in amounts.items() if value]
    return " and ".join(parts) or "nothing"


def nodes_text(nodes: Mapping[str, Amounts]) -> str:
    """CPUs and GPUs of each node."""
    return ", ".join(
        f"{node} ({amounts_text({name: have.get(name, 0.0) for name in ('CPU', 'GPU')})})"
        for node, have in nodes.items()
    ) or "no node"  # fmt: skip
