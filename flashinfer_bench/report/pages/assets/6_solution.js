// The page of a solution, and the comparison of two.
"use strict";
fibReport.solution = (() => {
  const { el, link, name, time, times, percent, withRange, table, more, status } = fibReport;

  // The workload of a verdict. On a phone, its hardware is below it.
  const place = (verdict, several) => el("span", { title: verdict.w }, name(verdict.axes || verdict.w), several ? el("small", { class: "range narrow" }, "on ", name(verdict.hardware)) : null);

  // The details of a verdict: the word, and the key of its data.
  const DETAILS = Object.entries({
    clock: "method", caches: "cache_state", launch: "launch", "fall-back": "fallback", samples: "samples", trials: "trials", "median ms": "median_ms", "first quartile ms": "q25_ms",
    "third quartile ms": "q75_ms", standing: "standing", assurance: "assurance", "library kernels": "library_kernels", "bound by": "bound", "outside ms": "outside_ms", "gated chain ms": "relay_ms", "batch ms": "burst_ms",
    unconfirmed: "why_unconfirmed", "setup ms": "setup_ms", evaluator: "evaluator", seed: "seed", "largest absolute error": "max_absolute_error", "largest relative error": "max_relative_error",
  });
  const MEANINGS = Object.entries({
    Latency: "the mean over the trials of the median of each trial's samples; on a GPU not below what calls timed from outside allow", "median ms, quartiles ms": "of the samples of all trials together",
    standing: "a confirmed result takes first place before others; a result of a CPU is only indicative", "outside ms": "the mean time of a call by another process, with the cost of requests; no bound of the latency",
    "gated chain ms, batch ms": "the time of a call in a series timed from outside: each call waits for the call before, or calls run back to back",
  });
  const facts = (pairs) => el("dl", null, pairs.flatMap(([key, value]) => [el("dt", null, key), el("dd", null, name(value))]));
  const details = (row, bounds) => [...DETAILS.map(([word, key]) => [word, key === "bound" ? bounds[row.details.bound] ?? row.details.bound : row.details[key]]), ["hardware", row.hardware], ["versions", row.libs], ["when", row.when], ["workload", row.w]]
    .filter(([, value]) => value !== null && value !== undefined && value !== "");

  function specOf({ spec, digest }) {
    const found = { language: spec.language, "entry point": spec.entry_point, "target hardware": (spec.target_hardware || []).join(", "), dependencies: (spec.dependencies || []).join(", "), binding: spec.binding, digest };
    return Object.entries(found).filter(([, value]) => value);
  }

  function show(data, overview) {
    const meanings = new Map(overview.flags);
    const flags = new Map();
    for (const verdict of data.verdicts) for (const flag of verdict.flags) flags.set(flag, (flags.get(flag) || 0) + 1);
    const several = new Set(data.verdicts.map((verdict) => verdict.hardware)).size > 1;
    const logs = data.logs.map((log, index) => [log, data.verdicts.filter((verdict) => verdict.log === index)]);
    return [
      el("h1", null, name(data.name)),
      el("p", { class: "figures" }, "by ", link(`#/?${new URLSearchParams({ author: data.author })}`, data.author), " for ", link(`#/definition/${data.d}`, data.definition), " ", fibReport.compare.box(data.id, data.name, "pick to compare")),
      !data.text ? el("p", { class: "note" }, "The set does not have this solution; only its traces are here.") : null,
      data.text?.description ? el("p", { class: "text" }, data.text.description) : null,
      data.text ? facts(specOf(data.text)) : null,
      el("h2", null, "Verdicts"),
      table({
        caption: "Verdicts by workload", rows: data.verdicts, sort: { column: 0, down: false }, columns: [
          { label: "Workload", value: (row) => row.axes, cell: (row) => place(row, several) },
          ...(several ? [{ label: "Hardware", kind: "wide", value: (row) => row.hardware, cell: (row) => name(row.hardware) }] : []),
          { label: "Verdict", value: (row) => row.status, cell: (row) => el("span", null, status(row.status), row.reason ? el("small", { class: "range" }, name(row.reason)) : null) },
          { label: "Latency", number: true, value: (row) => row.n[0], cell: (row) => withRange(time(row.n[0]), row.n[1], row.n[2], time) },
          { label: "Speed-up", number: true, down: true, value: (row) => row.n[4], cell: (row) => withRange(times(row.n[4]), row.n[6], row.n[7], times) },
          { label: "Reference", number: true, value: (row) => row.n[3], cell: (row) => time(row.n[3]) },
          { label: "Roofline", optional: true, hint: "share of the roofline", number: true, down: true, value: (row) => row.n[5], cell: (row) => percent(row.n[5]) },
          { label: "Flags", optional: true, value: (row) => row.flags.length || null, cell: (row) => el("span", null, row.flags.map((flag) => el("span", { class: "chip", title: meanings.get(flag) || null }, name(flag)))) },
        ],
        below: (row) => more(false, "details", facts(details(row, overview.bounds))),
      }),
      more(false, "What the details mean", facts(MEANINGS)),
      flags.size ? el("h2", null, "Flags") : null,
      flags.size ? el("dl", null, [...flags].map(([flag, count]) => [el("dt", null, name(flag)), el("dd", null, `${count} of ${data.verdicts.length}: ${meanings.get(flag) || "no meaning is known"}`)]).flat()) : null,
      logs.length ? el("h2", null, "Logs") : null,
      logs.map(([log, verdicts], index) => more(!index && verdicts.some((verdict) => verdict.status !== "PASSED"), `${verdicts.length} × ${verdicts[0] ? verdicts[0].status : ""}: ${verdicts.slice(0, 3).map((verdict) => verdict.axes || verdict.w).join("; ")}${verdicts.length > 3 ? "; …" : ""}`, el("pre", { tabindex: "0", role: "region", "aria-label": "Log" }, log))),
      el("h2", null, "Sources"),
      data.text ? data.text.sources.map(([path, pieces]) => [el("h3", null, name(path)), fibReport.definition.code(pieces, path)]).flat() : el("p", { class: "quiet" }, "The set does not have the sources."),
    ].flat();
  }
  return { show, place };
})();
fibReport.compare = (() => {
  const { el, link, name, time, times, table, withRange } = fibReport;
  const { place } = fibReport.solution;
  const picked = new Map();
  const THRESHOLD = 0.02; // the smallest difference of interest

  function draw() {
    const bar = document.getElementById("picked");
    const [first, second] = [...picked];
    const clear = el("button", { type: "button", onclick: () => { picked.clear(); for (const box of document.querySelectorAll("input.compare")) box.checked = false; draw(); } }, "Clear");
    if (!first) bar.replaceChildren();
    else if (!second) bar.replaceChildren(name(first[1]), " is picked. Pick another to compare it with. ", clear);
    else bar.replaceChildren(link(`#/compare/${first[0]}/${second[0]}`, `Compare ${first[1]} with ${second[1]}`), " ", clear);
  }
  function box(id, label, text) {
    const input = el("input", { type: "checkbox", class: "compare", "aria-label": `Compare ${label}`, checked: picked.has(id), onchange: () => {
      if (input.checked) picked.set(id, label); else picked.delete(id);
      if (picked.size > 2) picked.delete(picked.keys().next().value);
      for (const other of document.querySelectorAll("input.compare")) other.checked = picked.has(other.dataset.id); // a row for each kind of hardware
      draw();
    } });
    input.dataset.id = id;
    return text ? el("label", { class: "pick" }, input, ` ${text}`) : input;
  }

  // The rule of report/decision.py; a test checks that both agree. Half intervals are of logarithms.
  const half = ([latency, low, high]) => (latency > 0 && low > 0 && high > 0 ? Math.max(Math.log(high / latency), Math.log(latency / low), 0) : null);
  function decide(mean, reach) {
    const edge = Math.log(1 + THRESHOLD);
    if (reach === null) return "cannot tell yet";
    if (Math.abs(mean) + reach <= edge) return "same";
    if (reach < Math.abs(mean) && Math.abs(mean) > edge) return mean > 0 ? "slower" : "faster";
    return "cannot tell yet";
  }
  const inWords = (decision) => (decision === "same" ? `same within ${100 * THRESHOLD}\u00a0%` : decision);
  function ratioOf(pairs) {
    const logs = pairs.map(([one, two]) => Math.log(two[0] / one[0]));
    const centre = logs.reduce((sum, value) => sum + value, 0) / logs.length;
    const halves = pairs.flat().map(half);
    const reach = halves.includes(null) ? null : Math.hypot(...halves) / pairs.length;
    const [ratio, low, high] = [Math.exp(centre), reach === null ? null : Math.exp(centre - reach), reach === null ? null : Math.exp(centre + reach)];
    return { ratio, low, high, decision: decide(centre, reach) };
  }

  function show(first, second) {
    const key = (verdict) => JSON.stringify([verdict.w, verdict.hardware]);
    const others = new Map(second.verdicts.map((verdict) => [key(verdict), verdict]));
    const rows = first.verdicts.filter((verdict) => others.has(key(verdict))).map((one) => {
      const two = others.get(key(one));
      const other = Object.entries({ clock: "method", caches: "cache_state" }).find(([, key]) => one.details[key] !== two.details[key])?.[0];
      if (other) return { one, two, told: null, other };
      return { one, two, told: one.ranked && two.ranked ? ratioOf([[one.n, two.n]]) : null };
    });
    const timed = rows.filter((row) => row.told);
    const kinds = new Set(timed.map((row) => row.one.hardware));
    const several = new Set(rows.map((row) => row.one.hardware)).size > 1;
    const wholes = [...kinds].map((place) => [place, timed.filter((row) => row.one.hardware === place)]).map(([place, own]) => [place, own.length, ratioOf(own.map((row) => [row.one.n, row.two.n]))]);
    const decided = ([place, count, whole]) => el("p", { class: "decision" }, kinds.size > 1 ? [name(place), ": "] : null, el("strong", null, `B is ${inWords(whole.decision)}`), `: it takes ${times(whole.ratio)} the time of A `, whole.low === null ? "" : `(95\u00a0% interval ${times(whole.low)} to ${times(whole.high)}) `, count > 1 ? `over ${count} workloads that both passed` : "on the one workload that both passed");
    const why = (verdict) => (verdict.status === "PASSED" && !verdict.ranked ? "passed, its time does not count" : verdict.status);
    const verdict = (row) => (row.told ? inWords(row.told.decision) : row.other && row.one.ranked && row.two.ranked ? `not comparable: other ${row.other}` : `${why(row.one)} / ${why(row.two)}`);
    return [
      el("h1", null, "Compare"),
      el("p", null, "A: ", link(`#/solution/${first.id}`, first.name), el("br"), "B: ", link(`#/solution/${second.id}`, second.name)),
      first.d !== second.d ? el("p", { class: "note" }, "These are solutions of different definitions. They cannot be compared.") : null,
      wholes.map(decided),
      table({
        caption: "Workloads that both were judged on", rows, empty: "No workload was judged for both on the same hardware.", sort: { column: 0, down: false }, columns: [
          { label: "Workload", value: (row) => row.one.axes, cell: (row) => place(row.one, several) },
          ...(several ? [{ label: "Hardware", kind: "wide", value: (row) => row.one.hardware, cell: (row) => name(row.one.hardware) }] : []),
          { label: "B is", value: verdict, cell: (row) => verdict(row) },
          { label: "B / A", number: true, down: true, value: (row) => row.told && row.told.ratio, cell: (row) => (row.told ? withRange(times(row.told.ratio), row.told.low, row.told.high, times) : "–") },
          { label: "A", number: true, hint: "latency of A", value: (row) => row.one.n[0], cell: (row) => withRange(time(row.one.n[0]), row.one.n[1], row.one.n[2], time) },
          { label: "B", number: true, hint: "latency of B", value: (row) => row.two.n[0], cell: (row) => withRange(time(row.two.n[0]), row.two.n[1], row.two.n[2], time) },
        ],
      }),
      el("p", { class: "quiet" }, "A, B: the latency of each with its interval. B / A: the time of B over the time of A, with its 95\u00a0% interval from the recorded intervals. “Same within 2\u00a0%”: the whole interval is within 2\u00a0%. “Faster”, “slower”: the interval excludes 1, and the ratio is beyond 2\u00a0%. “Cannot tell yet”: measure both interleaved with ", el("code", null, "flashinfer-bench compare"), "."),
    ];
  }
  return { box, show, draw, decide };
})();
