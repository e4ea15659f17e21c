"""Sets that reports are made of: a usual one with four kinds of hardware, and a hostile one."""

from flashinfer_bench.data import TraceSet
from flashinfer_bench.report.pages.site import write_site
from tests.kit import make_definition, make_evaluation, make_solution, make_trace, make_workload

HARDWARE = ("NVIDIA H100 80GB HBM3", "NVIDIA H200", "NVIDIA B200", "odd device")
SIZES = (8, 64, 512)
SCRIPT = "<script>alert(1)</script>"
ATTACKS = (
    SCRIPT,
    "</script><script>alert(2)</script>",
    "</textarea><img src=x onerror=alert(3)>",
    "\"'><svg onload=alert(4)>",
    "\u202egnp.exe\u2066 \u05e9\u05dc\u05d5\u05dd \u2028 \u2029 \u0000",
    "{{ 7*7 }} ${alert(5)} `",
    "__proto__",
    "../../../etc/passwd",
    "javascript:alert(6)",
    "line one\n{{constructor.constructor('alert(7)')()}}\r\n<%= 7*7 %>",
    "<svg/onload=alert(8)><animate onbegin=alert(9) attributeName=x dur=1s>",
    "x" * 1_000_000,
)


def evaluation(latency, *, hardware=HARDWARE[0], speedup=2.0, **extra):
    """Make a passed evaluation whose time has an interval of 1 %."""

    def record(centre):
        return {"method": "cupti", "samples": 30, "interval95_ms": [centre * 0.995, centre * 1.005]}

    return make_evaluation(
        latency_ms=latency,
        speedup=speedup,
        environment={"hardware": hardware, "libs": {"torch": "2"}},
        extra={
            "measurement": {**record(latency), "flags": ["noisy"]},
            "baseline": record(latency * speedup),
            "roofline": {"flops": 1e9, "bytes": 1e6, "share": 0.25},
            **extra,
        },
    )


def at(size):
    return make_workload(f"w{size}", axes={"n": size})


def usual_set():
    """Make a set of four kinds of hardware with missing pieces: an unknown solution, an untouched definition."""
    traces = [
        make_trace(workload=at(size), solution=name, evaluation=evaluation(size / 100 * slow, hardware=place))
        for place in HARDWARE
        for name, slow in (("fast", 1.0), ("slow", 1.5), ("ghost", 3.0))
        for size in SIZES
    ]
    traces.append(make_trace(workload=at(8), solution="broken", status="RUNTIME_ERROR", log="boom\nline two"))
    warm = evaluation(1.0, hardware="warm device")
    cold = evaluation(1.0, hardware="warm device")
    warm.extra["measurement"]["cache_state"] = "warm"
    traces += [
        make_trace(workload=at(8), solution=name, evaluation=item) for name, item in (("fast", warm), ("slow", cold))
    ]
    lone = make_trace(definition="gone", workload=at(8), solution="fast", evaluation=evaluation(1.0))
    return TraceSet(
        definitions={name: make_definition(name, description="It doubles.") for name in ("double", "untouched")},
        solutions={
            "double": [make_solution(name, author=f"author of {name}") for name in ("fast", "slow", "broken", "new")]
        },
        workloads={"double": [make_trace(workload=at(size), solution=None) for size in SIZES]},
        traces={"double": traces, "gone": [lone]},
    )


def hostile_set():
    """Make a set in which every text that an author writes is an attack."""
    definitions, solutions, traces = {}, {}, {}
    for attack in ATTACKS:
        definition = make_definition(attack, op_type=attack, description=attack, tags=[attack])
        definitions[attack] = definition
        solutions[attack] = [make_solution(attack, definition=attack, author=attack, source=attack)]
        where = {"hardware": attack, "libs": {attack: attack}}
        failed = make_evaluation("RUNTIME_ERROR", log=attack, environment=where)
        odd = {"measurement": {"flags": [attack], "method": attack, "not_confirmed": attack}, "evaluator": attack}
        passed = make_evaluation(environment=where, extra=odd)
        traces[attack] = [
            make_trace(definition=attack, workload=make_workload(attack), solution=attack, evaluation=failed),
            make_trace(definition=attack, workload=make_workload("w"), solution=attack, evaluation=passed),
        ]
    return TraceSet(definitions=definitions, solutions=solutions, traces=traces)


def long_set():
    """Make a set with names as long as they are in use, times that mean nothing, and two kinds of hardware."""
    name = "moe_fp8_block_scale_ds_routing_topk8_ng8_kg4_e32_h7168_i2048"
    names = [f"{author}_{name}" for author in ("cuda", "plain", "interpreted")]
    nothing = {"measurement": {"meaningful": False, "reason": "Triton's interpreter ran it", "method": "wall"}}
    traces = [
        make_trace(
            definition=name,
            workload=at(size),
            solution=solution,
            evaluation=evaluation(size / 100, hardware=place, roofline={}, **(nothing if solution == names[2] else {})),
        )
        for solution in names
        for place in HARDWARE[:2]
        for size in SIZES
    ]
    failed = {"status": "INCORRECT_NUMERICAL", "log": "AssertionError: no\n", "environment": {"hardware": HARDWARE[0]}}
    traces.append(make_trace(definition=name, workload=at(9), solution=names[1], evaluation=make_evaluation(**failed)))
    return TraceSet(
        definitions={name: make_definition(name, op_type="moe")},
        solutions={name: [make_solution(item, definition=name, author=item.split("_")[0]) for item in names]},
        traces={name: traces},
    )


def write_pages(folder, trace_set):
    """Write the pages of a whole set, and return their folder."""
    write_site(folder, trace_set, [item for part in trace_set.traces.values() for item in part], title="A set")
    return folder
