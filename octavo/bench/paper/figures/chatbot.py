"""Fig. 17: the last question of conversations with a long history."""

from octavo.bench import drawing
from octavo.bench.paper.figures.compared import Compared, Goal, Way
from octavo.bench.paper.rates import Plan

PAGED = "paged"

CHATBOT = Compared(
    name="chatbot",
    number="Fig. 17",
    title="Conversations with a long history",
    preset="opt-13b",
    traces=("chatbot",),
    ways=(
        Way(PAGED, "paged", False, drawing.POLICY_COLORS["paged"]),
        Way("Orca (Oracle)", "orca-oracle", False, drawing.POLICY_COLORS["orca-oracle"]),
        Way("Orca (Pow2)", "orca-pow2", False, drawing.POLICY_COLORS["orca-pow2"], in_quick=False),
        Way("Orca (Max)", "orca-max", False, drawing.POLICY_COLORS["orca-max"]),
    ),
    goals=(
        Goal("chatbot", PAGED, "Orca (Oracle)", "2x", None),
        Goal("chatbot", PAGED, "Orca (Pow2)", "2x", None),
        Goal("chatbot", PAGED, "Orca (Max)", "2x", None),
    ),
    plans={
        ("real", False): Plan(threshold=0.05, seconds=8.0, fewest=20, fractions=(0.5, 0.9, 1.2), closeness=1.1, most_runs=6),
        ("real", True): Plan(threshold=0.05, seconds=1.5, fewest=4, fractions=(1.0, 1.5), closeness=1.3, most_runs=2),
        ("simulated", False): Plan(threshold=0.5, seconds=450.0, fractions=(0.3, 0.6, 0.9, 1.1), closeness=1.04),
        ("simulated", True): Plan(threshold=0.5, seconds=60.0, fractions=(0.5, 0.9), closeness=1.2, most_runs=6),
    },
    notes=("As in the paper nothing is kept from one round of a conversation to the next: every prompt is computed.",),
)
