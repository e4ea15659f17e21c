// The page of a definition.
"use strict";
fibReport.definition = (() => {
  const { el, link, name, time, times, percent, withRange, counted, table, digits, captionOf, weightNote, unconfirmed, CONFIRMED } = fibReport;
  const POINT = { workload: 0, status: 1, latency: 2, low: 3, high: 4, speedup: 5, share: 6, least: 7, most: 8, ranked: 9, standing: 10, weight: 11 };

  function code(pieces, label) {
    return el("pre", { tabindex: "0", role: "region", "aria-label": label }, el("code", null, pieces.map(([kind, text]) => (kind ? el("span", { class: `t-${kind}` }, text) : text))));
  }
  const axisFacts = (axes) => Object.entries(axes).map(([key, axis]) => [key, axis.type, axis.value ?? axis.expression ?? "", axis.description || ""]);
  const tensorFacts = (specs) => Object.entries(specs).map(([key, spec]) => [key, spec.shape ? `[${spec.shape.join(", ")}]` : "scalar", spec.dtype, spec.description || ""]);
  function facts(caption, heads, rows) {
    return table({ caption, rows, columns: heads.map((label, index) => ({ label, cell: (row) => name(row[index]) })), empty: `${caption}: none` });
  }
  function median(values) {
    const sorted = [...values].sort((one, two) => one - two);
    const middle = sorted.length / 2;
    return sorted.length ? (sorted[Math.ceil(middle) - 1] + sorted[Math.floor(middle)]) / 2 : null;
  }
  const speed = (item) => item.speedup?.value;
  const latency = (item) => median(item.rows.map((row) => row[POINT.latency]).filter((value) => value !== null));
  const failure = (item) => (item.rows.find((row) => row[POINT.status] !== "PASSED") || [])[POINT.status];
  const standing = (item) => { const all = item.rows.map((row) => row[POINT.standing]); return all.includes(CONFIRMED) ? CONFIRMED : all.find(Boolean); };
  const passed = (item) => item.rows.filter((row) => row[POINT.status] === "PASSED").length;
  const count = (item) => counted({ passed: passed(item), judged: item.rows.length, latency: latency(item), failure: failure(item), standing: standing(item) });

  function bestOf(data, series) {
    const best = new Map();
    for (const item of series) for (const row of item.rows) {
      if (row[POINT.status] !== "PASSED" || !row[POINT.ranked]) continue;
      const list = best.get(row[0]) || [];
      list.push({ item, row });
      best.set(row[0], list);
    }
    return [...best].map(([workload, list]) => {
      const waits = ({ row }) => row[POINT.standing] !== CONFIRMED;
      list.sort((one, two) => waits(one) - waits(two) || one.row[POINT.latency] - two.row[POINT.latency]);
      const [first] = list;
      const ties = list.slice(1).filter(({ row }) => row[POINT.low] !== null && first.row[POINT.high] !== null && row[POINT.low] <= first.row[POINT.high] && row[POINT.high] >= first.row[POINT.low]);
      return { workload, first, ties, of: list.length };
    });
  }

  // The data with its var axes. The axis with the most sizes is first, since latency is drawn over it.
  function withAxes(data) {
    const names = [...new Set(data.workloads.flatMap(([, sizes]) => Object.keys(sizes)))];
    const known = names.filter((axis) => !data.text || data.text.axes[axis]?.type === "var");
    const distinct = (axis) => new Set(data.workloads.map(([, sizes]) => sizes[axis])).size;
    const axes = [...(known.length ? known : names)].sort((one, two) => distinct(two) - distinct(one));
    return { ...data, axes, workloads: data.workloads.map(([uuid, sizes, ...cost]) => [uuid, axes.map((axis) => sizes[axis] ?? null), ...cost]) };
  }

  function show(given, query, go) {
    const data = withAxes(given);
    const chosen = data.hardware.includes(query.get("hw")) ? query.get("hw") : data.hardware[0];
    const place = data.hardware.indexOf(chosen);
    const all = data.series.filter((item) => item.h === place);
    const wanted = (query.get("show") || "").split(",").filter(Boolean);
    const ordered = [...all].sort((one, two) => passed(two) - passed(one) || (speed(two) || 0) - (speed(one) || 0));
    const drawn = (wanted.length ? all.filter((item) => wanted.includes(item.id)) : ordered.filter((item) => item.rows.some((row) => row[POINT.latency] > 0))).slice(0, fibReport.charts.COLOURS - 1);
    const axisIndex = Math.max(0, data.axes.indexOf(query.get("axis")));
    const set = (key, value) => { const next = new URLSearchParams(query); if (value) next.set(key, value); else next.delete(key); go(`#/definition/${data.id}?${next}`); };
    const pick = (label, key, options, current) => { const field = el("select", { onchange: () => set(key, field.value) }, options.map((item) => el("option", { value: item, selected: item === current }, item))); return el("label", null, `${label} `, field); };
    const text = data.text;
    const axesOf = (index) => { const [uuid, sizes] = data.workloads[index]; return data.axes.map((axis, at) => `${axis}=${sizes[at]}`).join(" ") || uuid; };
    const workload = (index) => el("span", { title: data.workloads[index][0] }, name(axesOf(index)));
    const past = data.history.filter(([id, h]) => h === place && drawn.some((item) => item.id === id));
    const repeated = [...new Set(past.map(([, , index]) => index))];
    const remembered = repeated.find((index) => axesOf(index) === query.get("workload")) ?? repeated[0];
    const ofPast = past.filter(([, , index]) => index === remembered).map(([id, , , rows]) => ({ name: drawn.find((item) => item.id === id).name, rows }));
    const toggle = (item) => { const now = new Set(drawn.map((one) => one.id)); if (!now.delete(item.id)) now.add(item.id); set("show", [...now].join(",")); };
    return [
      el("h1", null, name(data.name)),
      !text ? el("p", { class: "note" }, "The set does not have this definition; only its traces are here.") : el("p", { class: "figures" }, `${text.op_type}, ${data.workloads.length} workloads, ${all.length} solutions `, (text.tags || []).map((tag) => el("span", { class: "chip" }, name(tag)))),
      text?.description ? el("p", { class: "text" }, text.description) : null,
      all.length ? el("form", { class: "filters" }, data.hardware.length > 1 ? pick("Hardware", "hw", data.hardware, chosen) : null, data.axes.length > 1 ? pick("Axis", "axis", data.axes, data.axes[axisIndex]) : null) : null,
      el("h2", null, "Solutions"),
      ...fibReport.apart(ordered, (item) => latency(item) !== null, "Solutions", captionOf(all.flatMap((item) => item.rows.map((row) => row[POINT.standing])), `Solutions on ${chosen || "no hardware"}`), {
        empty: "There is no verdict on this definition yet.",
        columns: [
          { label: "Pick", hint: "pick two to compare them", kind: "control", cell: (item) => fibReport.compare.box(item.id, item.name) },
          { label: "Chart", kind: "control", cell: (item) => el("input", { type: "checkbox", "aria-label": `Draw ${item.name}`, checked: drawn.includes(item), onchange: () => toggle(item) }) },
          { label: "Solution", value: (item) => item.name, cell: (item) => [link(`#/solution/${item.id}`, item.name), el("div", { class: "narrow" }, count(item))] },
          { label: "Author", kind: "wide", value: (item) => item.author, cell: (item) => name(item.author) },
          { label: "Passed", kind: "wide", number: true, down: true, value: passed, cell: count },
          { label: "Latency", optional: true, number: true, hint: "median over the passed workloads", value: latency, cell: (item) => time(latency(item)) },
          { label: "Speed-up", optional: true, number: true, down: true, hint: "over the reference: geometric mean over the passed workloads, with its 95 % interval", value: speed, cell: (item) => withRange(times(speed(item)), item.speedup?.low, item.speedup?.high, times) },
        ],
      }),
      weightNote(new Set(all.flatMap((item) => item.rows.map((row) => row[POINT.weight]))).size > 1),
      drawn.length && data.axes.length ? el("h2", null, "Latency by workload") : null,
      drawn.length && data.axes.length ? fibReport.charts.latency(data, drawn, axisIndex) : null,
      drawn.length ? fibReport.charts.roofline(data, drawn, place) : null,
      ofPast.length ? el("h2", null, "History of a workload") : null,
      repeated.length > 1 ? el("form", { class: "filters" }, pick("Workload", "workload", repeated.map(axesOf), axesOf(remembered))) : null,
      ofPast.length ? fibReport.charts.history(ofPast, axesOf(remembered)) : null,
      el("h2", null, "Best by workload"),
      table({
        caption: "The fastest solution of each workload, of the solutions that passed with a time that counts", rows: bestOf(data, all), empty: "No whole verdict passed; quick looks are not ranked.", sort: { column: 0, down: false },
        columns: [
          { label: "Workload", kind: "short", value: (row) => axesOf(row.workload), cell: (row) => workload(row.workload) },
          { label: "Fastest", kind: "short", value: (row) => row.first.item.name, cell: (row) => [link(`#/solution/${row.first.item.id}`, row.first.item.name), unconfirmed(row.first.row[POINT.standing])] },
          { label: "Latency", number: true, value: (row) => row.first.row[2], cell: (row) => withRange(time(row.first.row[2]), row.first.row[3], row.first.row[4], time) },
          { label: "Speed-up", number: true, down: true, value: (row) => row.first.row[5], cell: (row) => withRange(times(row.first.row[5]), row.first.row[POINT.least], row.first.row[POINT.most], times) },
          { label: "Roofline", optional: true, number: true, down: true, hint: "share of the roofline", value: (row) => row.first.row[6], cell: (row) => percent(row.first.row[6]) },
          { label: "Ties", hint: "their intervals overlap the interval of the fastest, so the difference is not significant", value: (row) => row.ties.length, cell: (row) => el("span", null,
            row.ties.slice(0, 3).map(({ item }, at) => [at ? ", " : "", link(`#/solution/${item.id}`, item.name)]).flat(), row.ties.length > 3 ? ` and ${row.ties.length - 3} more` : "") },
          { label: "Of", number: true, hint: "number of solutions that passed with a time that counts", value: (row) => row.of, cell: (row) => digits(row.of) },
        ],
      }),
      !text ? null : el("section", null,
        el("h2", null, "What it computes"),
        facts("Axes", ["Axis", "Kind", "Size", "Meaning"], axisFacts(text.axes)), facts("Inputs", ["Input", "Shape", "Dtype", "Meaning"], tensorFacts(text.inputs)), facts("Outputs", ["Output", "Shape", "Dtype", "Meaning"], tensorFacts(text.outputs)),
        text.constraints?.length ? facts("Constraints", ["Constraint"], text.constraints.map((item) => [item])) : null,
        el("h3", null, "Reference"), code(text.reference, "Reference")),
    ];
  }
  return { show, code };
})();
