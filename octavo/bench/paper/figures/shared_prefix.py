"""Fig. 16: translation requests that all begin with the same instruction and examples."""

from octavo.bench import drawing
from octavo.bench.paper.figures.compared import Compared, Goal, Way
from octavo.bench.paper.rates import Plan

PAGED, ORACLE = "paged, prefix shared", "Orca (Oracle)"
ONE_SHOT, FIVE_SHOT = "translation-80", "translation-341"

SHARED_PREFIX = Compared(
    name="shared-prefix",
    number="Fig. 16",
    title="A prefix that all requests share",
    preset="llama-13b",
    traces=(ONE_SHOT, FIVE_SHOT),
    ways=(
        Way(PAGED, "paged", True, drawing.POLICY_COLORS["paged"]),
        Way("paged, prefix not shared", "paged", False, "#4b9aa8", in_quick=False),
        Way(ORACLE, "orca-oracle", False, drawing.POLICY_COLORS["orca-oracle"]),
    ),
    goals=(
        Goal(ONE_SHOT, PAGED, ORACLE, "1.67x", 1.67),
        Goal(FIVE_SHOT, PAGED, ORACLE, "3.58x", 3.58),
    ),
    plans={
        ("real", False): Plan(threshold=0.05, seconds=10.0, fewest=20, fractions=(0.5, 0.9, 1.2), closeness=1.1, most_runs=6),
        ("real", True): Plan(threshold=0.05, seconds=2.0, fewest=6, fractions=(1.0, 1.5), closeness=1.3, most_runs=3),
        ("simulated", False): Plan(threshold=0.5, seconds=60.0, fractions=(0.3, 0.6, 0.9, 1.1), closeness=1.04),
        ("simulated", True): Plan(threshold=0.5, seconds=20.0, fractions=(0.5, 0.9), closeness=1.2, most_runs=7),
    },
    notes=("Where it is shared the prefix is pinned: computed once, before the first request arrives.",),
)
