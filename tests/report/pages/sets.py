"""Sets for reports: a usual set with four kinds of hardware, and a hostile set."""

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


def at(size, solution, latency=None, *, definition="double", hardware=HARDWARE[0], record=None, **parts):
    """Make a trace on the workload of a size. Its time, if given, has an interval of 1 %."""
    parts["environment"] = {"hardware": hardware, "libs": {"torch": "2"}}
    if latency is not None:
        reported = {"method": "cupti", "samples": 30}
        parts["latency_ms"] = latency
        parts["extra"] = {
            "measurement": reported
            | {"interval95_ms": [latency * 0.995, latency * 1.005], "flags": ["noisy"]}
            | (record or {}),
            "baseline": reported | {"interval95_ms": [latency * 1.99, latency * 2.01]},
            "roofline": {"flops": 1e9, "bytes": 1e6, "share": 0.25},
        } | parts.get("extra", {})
    workload = make_workload(f"w{size}", axes={"n": size})
    return make_trace(definition=definition, workload=workload, solution=solution, **parts)


def usual_set():
    """Make a set of four kinds of hardware with missing pieces: an unknown solution, an untouched definition."""
    traces = [
        at(size, name, size / 100 * slow, hardware=place)
        for place in HARDWARE
        for name, slow in (("fast", 1.0), ("slow", 1.5), ("ghost", 3.0))
        for size in SIZES
    ]
    traces.append(at(8, "broken", status="RUNTIME_ERROR", log="boom\nline two", hardware="test device"))
    traces.append(at(8, "fast", 1.0, hardware="warm device", record={"cache_state": "warm"}))
    traces.append(at(8, "slow", 1.0, hardware="warm device"))
    return TraceSet(
        definitions={name: make_definition(name, description="It doubles.") for name in ("double", "untouched")},
        solutions={
            "double": [make_solution(name, author=f"author of {name}") for name in ("fast", "slow", "broken", "new")]
        },
        workloads={"double": [at(size, None) for size in SIZES]},
        traces={"double": traces, "gone": [at(8, "fast", 1.0, definition="gone")]},
    )


def hostile_set():
    """Make a set in which every text of an author is an attack."""
    found = TraceSet()
    for attack in ATTACKS:
        found.definitions[attack] = make_definition(attack, op_type=attack, description=attack, tags=[attack])
        found.solutions[attack] = [make_solution(attack, definition=attack, author=attack, source=attack)]
        where = {"hardware": attack, "libs": {attack: attack}}
        odd = {"measurement": {"flags": [attack], "method": attack, "not_confirmed": attack}, "evaluator": attack}
        verdicts = {
            attack: make_evaluation("RUNTIME_ERROR", log=attack, environment=where),
            "w": make_evaluation(environment=where, extra=odd),
        }
        found.traces[attack] = [
            make_trace(definition=attack, workload=make_workload(uuid), solution=attack, evaluation=verdict)
            for uuid, verdict in verdicts.items()
        ]
    return found


def long_set():
    """Make a set with long but realistic names, meaningless times, and two kinds of hardware."""
    name = "moe_fp8_block_scale_ds_routing_topk8_ng8_kg4_e32_h7168_i2048"
    names = [f"{author}_{name}" for author in ("cuda", "plain", "interpreted")]
    nothing = {"meaningful": False, "reason": "Triton's interpreter ran it", "method": "wall"}
    traces = []
    for solution in names:
        how = {"definition": name, "extra": {"roofline": {}}}
        if solution == names[2]:
            how["extra"]["measurement"] = nothing
        traces += [at(size, solution, size / 100, hardware=place, **how) for place in HARDWARE[:2] for size in SIZES]
    wrong = {"definition": name, "status": "INCORRECT_NUMERICAL", "log": "AssertionError: no\n"}
    traces += [at(size, names[1], **wrong) for size in (9, 10, 11, 12)]
    return TraceSet(
        definitions={name: make_definition(name, op_type="moe")},
        solutions={name: [make_solution(item, definition=name, author=item.split("_")[0]) for item in names]},
        traces={name: traces},
    )


def write_pages(folder, trace_set):
    """Write the pages of a whole set, and return their folder."""
    traces = [trace for part in trace_set.traces.values() for trace in part]
    write_site(folder, trace_set, traces, title="a <set>")
    return folder
