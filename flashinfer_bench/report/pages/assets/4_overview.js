// The overview, the leaderboard, and the search over both.
"use strict";
fibReport.overview = (() => {
  const { el, link, name, time, times, percent, withRange, counted, table, more, digits, captionOf, weightNote, unconfirmed, CONFIRMED } = fibReport;
  const MOST_ROWS = 30;
  const distinct = (rows, place) => [...new Set(rows.map((row) => row[place]))].sort();

  function select(label, options, chosen, onchange) {
    const field = el("select", { onchange: () => onchange(field.value) }, el("option", { value: "" }, "all"), options.map((item) => el("option", { value: item, selected: item === chosen }, item)));
    return el("label", null, `${label} `, field);
  }

  // Definition → its ranked rows, the fastest first. A confirmed result precedes all others.
  function ranked(rows) {
    const found = new Map();
    for (const row of rows) if (row.speedup && row.passed === row.judged && !row.quick) found.set(row.did, [...(found.get(row.did) || []), row]);
    for (const list of found.values()) list.sort((one, two) => (two.standing === CONFIRMED) - (one.standing === CONFIRMED) || two.speedup.value - one.speedup.value);
    return found;
  }

  function sentence(found, hardware) {
    const wins = new Map();
    for (const [first] of found.values()) wins.set(first.author, (wins.get(first.author) || 0) + 1);
    const [best, ...others] = [...wins].sort((one, two) => two[1] - one[1]);
    if (!best) return el("p", { class: "lead" }, "No solution has passed with a time that counts.");
    return el("p", { class: "lead" }, el("strong", null, name(best[0])), ` is fastest on ${best[1]} of ${found.size} definitions on `, name(hardware),
      others.slice(0, 3).map(([author, count], at) => [at ? ", " : "; ", name(author), ` on ${count}`]).flat(), ".");
  }

  // Marks on a logarithmic scale, a line for each author. The table below has the same numbers.
  function speedups(data, found, hardware) {
    const known = data.definitions.filter(([id]) => found.has(id));
    const shown = known.slice(0, MOST_ROWS);
    const rows = shown.flatMap(([id]) => found.get(id));
    if (!rows.length) return null;
    const authors = distinct(rows, "author");
    const ends = rows.flatMap(({ speedup }) => [speedup.value, speedup.low, speedup.high]).filter((value) => value > 0);
    const [low, high] = [Math.min(...ends, 1) / 1.15, Math.max(...ends, 1) * 1.15];
    const across = (value) => (100 * Math.log(Math.max(value, low) / low)) / Math.log(high / low);
    const put = (element, parts) => { for (const [key, value] of Object.entries(parts)) element.style[key] = `${value}%`; return element; };
    const ticks = [-3, -2, -1, 0, 1, 2, 3].flatMap((power) => (high / low < 60 ? [1, 2, 5] : [1]).map((digit) => digit * 10 ** power)).filter((value) => value > low && value < high);
    const lines = () => ticks.map((value) => put(el("span", { class: value === 1 ? "tick one" : "tick" }), { left: across(value) }));
    const marks = (row) => {
      const { value, low: from, high: to } = row.speedup;
      const index = authors.indexOf(row.author);
      const top = (100 * (index + 1)) / (authors.length + 1);
      const title = `${row.solution}: ${times(value)} (${fibReport.range(from, to, times) || "no interval"})`;
      return [from > 0 ? put(el("span", { class: `reach series-${index % 8}` }), { left: across(from), width: across(to) - across(from), top }) : null,
        put(el("span", { class: `mark series-${index % 8}`, title }), { left: across(value), top })];
    };
    return el("figure", null,
      el("figcaption", null, captionOf(rows.map((row) => row.standing), `Speed-up over the reference by definition on ${hardware}, higher is better; bars are 95 % intervals`)),
      el("ul", { class: "legend" }, authors.map((author, index) => el("li", null, el("span", { class: `swatch series-${index % 8}` }), name(author)))),
      el("div", { class: "marks" }, shown.map(([id, text]) => [el("div", null, link(`#/definition/${id}`, text)), el("div", { class: "track" }, lines(), found.get(id).map(marks).flat())]).flat(),
        el("div", { class: "wide" }), el("div", { class: "ticks" }, ticks.filter((value) => Math.abs(across(value) - 50) < 46).map((value) => put(el("span", null, `${digits(value)}×`), { left: across(value) })))),
      known.length > shown.length ? el("p", { class: "quiet" }, `The table has the other ${known.length - shown.length} definitions.`) : null);
  }

  // For one kind of hardware. Numbers of two kinds are not compared, so they have no common best.
  function matrix(data, all, found, hardware) {
    const rows = all.filter((row) => row.hardware === hardware);
    const authors = distinct(rows, "author");
    const best = new Map();
    for (const row of rows) {
      const key = JSON.stringify([row.did, row.author]);
      const other = best.get(key);
      const merit = (item) => [item.passed / item.judged, item.speedup?.value || 0];
      if (!other || merit(row)[0] > merit(other)[0] || (merit(row)[0] === merit(other)[0] && merit(row)[1] > merit(other)[1])) best.set(key, row);
    }
    const columns = [{ label: "Definition", value: (item) => item[1], cell: (item) => link(`#/definition/${item[0]}`, item[1]) },
      ...authors.map((author) => {
        const find = (item) => best.get(JSON.stringify([item[0], author]));
        return {
          label: author, number: true, down: true, hint: "sorts by the speed-up of the author's best solution",
          value: (item) => { const row = find(item); return row ? row.speedup?.value : null; },
          cell: (item) => {
            const row = find(item);
            if (!row) return el("span", { class: "quiet" }, "–");
            const whole = row.passed === row.judged;
            const isBest = found.get(item[0])?.[0].author === author;
            const kind = !whole ? "bad" : row.speedup?.value >= 1 ? "good" : "";
            return el("a", { href: `#/solution/${row.id}`, class: `cell ${kind} ${isBest ? "best" : ""}`, title: isBest ? "the fastest of this definition" : null },
              `${isBest ? "★ " : ""}${row.passed}/${row.judged} `, withRange(times(row.speedup?.value), row.speedup?.low, row.speedup?.high, times));
          },
        };
      })];
    const judged = new Set(rows.map((row) => row.did));
    return table({ caption: captionOf(rows.map((row) => row.standing), `Passed workloads, and speed-up over the reference, of each author's best solution on ${hardware}. ★ marks the fastest, green a speed-up of at least 1, red a failed workload`), columns, rows: data.definitions.filter((item) => judged.has(item[0])), empty: "No verdict fits the filters." });
  }

  function solutions(rows) {
    const several = distinct(rows, "hardware").length > 1;
    return fibReport.apart(rows, (row) => row.latency !== null, "Solutions", "Latency: median over the passed workloads; speed-up over the reference: geometric mean", {
      empty: "No solution fits the filters.", sort: { column: 1, down: false },
      columns: [
        { label: "Pick", hint: "pick two to compare them", kind: "control", cell: (row) => fibReport.compare.box(row.id, row.solution) },
        { label: "Definition", kind: "wide tight", value: (row) => row.definition, cell: (row) => link(`#/definition/${row.did}`, row.definition) },
        { label: "Solution", kind: "tight", value: (row) => row.solution, cell: (row) => [link(`#/solution/${row.id}`, row.solution), el("div", { class: "narrow" }, counted(row)), row.solution.includes(row.definition) ? null : el("small", { class: "range narrow" }, "for ", name(row.definition)), several ? el("small", { class: "range" }, "on ", name(row.hardware)) : null] },
        { label: "Author", kind: "wide", value: (row) => row.author, cell: (row) => name(row.author) },
        { label: "Passed", kind: "wide", number: true, down: true, value: (row) => row.passed / row.judged, cell: counted },
        { label: "Latency", optional: true, number: true, hint: "median over the passed workloads", value: (row) => row.latency, cell: (row) => time(row.latency) },
        { label: "Speed-up", optional: true, number: true, down: true, hint: "geometric mean over the passed workloads, with its 95 % interval", value: (row) => row.speedup?.value, cell: (row) => withRange(times(row.speedup?.value), row.speedup?.low, row.speedup?.high, times) },
        { label: "Roofline", optional: true, number: true, down: true, hint: "share of the roofline", value: (row) => row.share, cell: (row) => percent(row.share) },
      ],
    });
  }

  function show(data, query, go) {
    const hardware = distinct(data.solutions, "hardware");
    const opTypes = [...new Set(data.definitions.map((item) => item[2]))].filter(Boolean).sort();
    const opType = new Map(data.definitions.map((item) => [item[0], item[2]]));
    const words = (query.get("q") || "").toLowerCase();
    const chosen = { hw: query.get("hw") || "", op: query.get("op") || "", author: query.get("author") || "", state: query.get("state") || "" };
    const field = data.solutions.filter((row) => (!chosen.hw || row.hardware === chosen.hw) && (!chosen.op || opType.get(row.did) === chosen.op));
    const rows = field.filter((row) => (!chosen.author || row.author === chosen.author) && (!chosen.state || (chosen.state === "passed") === (row.passed === row.judged)) &&
      (!words || `${row.solution} ${row.definition} ${row.author}`.toLowerCase().includes(words)));
    const set = (key) => (value) => { const next = new URLSearchParams(query); if (value) next.set(key, value); else next.delete(key); go(`#/?${next}`); };
    const filter = el("input", { type: "search", value: query.get("q") || "", id: "filter", onchange: () => set("q")(filter.value) });
    const held = distinct(rows, "hardware");
    const count = (place) => rows.filter((row) => row.hardware === place).reduce((sum, row) => sum + row.judged, 0);
    const most = held.reduce((one, two) => (one === null || count(two) > count(one) ? two : one), null);
    const found = ranked(field.filter((row) => row.hardware === most)); // of all authors, whatever rows are shown;
    const seen = new Set(data.solutions.map((row) => row.did));
    const unjudged = data.definitions.filter(([id, , op]) => !seen.has(id) && (!chosen.op || op === chosen.op));
    const passed = rows.reduce((sum, row) => sum + row.passed, 0);
    const judged = rows.reduce((sum, row) => sum + row.judged, 0);
    return [
      el("h1", null, "Overview"),
      rows.length ? sentence(found, most) : null,
      speedups(data, found, most),
      el("p", { class: "figures" }, `${distinct(rows, "did").length} of ${data.definitions.length} definitions, ${distinct(rows, "id").length} of ${data.definitions.reduce((sum, item) => sum + item[3], 0)} solutions, ${judged} verdicts, ${percent(judged ? passed / judged : null)} of them passed`, held.length === 1 ? [", on ", name(held[0])] : null),
      el("form", { class: "filters", onsubmit: (event) => { event.preventDefault(); set("q")(filter.value); } },
        el("label", null, "Filter ", filter), select("Hardware", hardware, chosen.hw, set("hw")), select("Op type", opTypes, chosen.op, set("op")),
        select("Author", distinct(data.solutions, "author"), chosen.author, set("author")), select("Verdict", ["passed", "failed"], chosen.state, set("state"))),
      hardware.length > 1 && !chosen.hw ? el("p", { class: "note" }, "There are several kinds of hardware, whose numbers must not be compared. Choose one kind above.") : null,
      el("h2", null, "Definitions and authors"), matrix(data, rows, found, most),
      unjudged.length ? more(false, `Definitions without a verdict: ${unjudged.length}`, el("p", null, unjudged.map(([id, text], at) => [at ? ", " : "", link(`#/definition/${id}`, text)]).flat())) : null,
      el("h2", null, "Solutions"), ...solutions(rows),
      weightNote(data.weighted),
      el("p", { class: "quiet" }, "Small figures below a number are its 95 % interval. It holds for a re-run in a new worker on the same machine."),
    ];
  }

  function leaderboard(data, query, go) {
    const hardware = [...new Set(data.ranking.map((row) => row.hardware))].sort();
    const chosen = hardware.includes(query.get("hw")) ? query.get("hw") : hardware[0];
    const rows = data.ranking.filter((row) => row.hardware === chosen);
    const timed = rows.filter((row) => row.compared > 0);
    const untimed = rows.filter((row) => row.passed && !row.compared).map((row) => row.author);
    const against = data.baseline ? `the solutions of ${data.baseline}` : "the reference";
    const number = (label, hint, value, cell) => ({ label, hint, number: true, down: true, value, cell });
    const pick = el("select", { id: "hardware", onchange: () => go(`#/leaderboard?${new URLSearchParams({ hw: pick.value })}`) }, hardware.map((item) => el("option", { value: item, selected: item === chosen }, item)));
    const columns = [
      { label: "Author", value: (row) => row.author, cell: (row) => [link(`#/?${new URLSearchParams({ author: row.author })}`, row.author), unconfirmed(row.standing)] },
      number("Share of fastest", "mean over all definitions that any author passed, of the mean over workloads, of the lowest latency of any author over the author's; 0 for a workload that the author did not pass", (row) => row.fastest_share, (row) => percent(row.fastest_share)),
      number("Score", "mean over definitions of the mean speed-up of the best solution; 0 if it failed a workload", (row) => row.score, (row) => times(row.score)),
      number("Speed-up", "geometric mean over the compared workloads, with its 95 % interval", (row) => row.speedup && row.speedup.value, (row) => (row.speedup ? withRange(times(row.speedup.value), row.speedup.low, row.speedup.high, times) : "–")),
      number("Win rate", "share of the compared workloads that are faster than the baseline", (row) => row.win_rate, (row) => percent(row.win_rate)),
      { optional: true, ...number("Roofline", "share of the roofline, geometric mean of the passed workloads whose cost is known", (row) => row.roofline_share, (row) => percent(row.roofline_share)) },
      number("Passed", "passed workloads of the best solutions", (row) => row.passed / row.workloads, (row) => `${row.passed}/${row.workloads}`),
      number("Definitions", "definitions with a verdict", (row) => row.definitions, (row) => digits(row.definitions)),
    ];
    return [
      el("h1", null, "Leaderboard"),
      el("p", null, "Authors are ranked by their share of the fastest: for each workload, the lowest latency of any author over the author's, or 0 if the author did not pass. If any author has a confirmed result, only an author with a confirmed result takes first place. No baseline can inflate this share. Score, speed-up, win rate and fast_p are against ", name(against), ". If the baseline is slow, they are high."),
      hardware.length ? el("form", { class: "filters" }, el("label", null, "Hardware ", pick)) : null,
      ...fibReport.apart(rows, (row) => row.compared > 0, "Authors", captionOf(rows.map((row) => row.standing), `Authors on ${chosen}`), { empty: "There is no whole verdict; quick looks are not ranked.", columns }),
      rows.length ? more(false, "What the columns mean", el("dl", null, table.columnsOf(columns, rows).filter((column) => column.hint).flatMap((column) => [el("dt", null, column.label), el("dd", null, column.hint)]))) : null,
      weightNote(data.weighted),
      untimed.length ? el("p", { class: "quiet" }, "Nothing to compare: ", untimed.map((author, index) => [index ? ", " : "", name(author)]).flat(), ". No time counts, as under Triton's interpreter, or the baseline has none.") : null,
      timed.length ? el("h2", null, "fast_p") : null,
      timed.length ? fibReport.charts.fastP(data.p, timed) : null,
      timed.length ? more(false, "fast_p as a table", table({
        caption: "fast_p", rows: timed, columns: [{ label: "Author", value: (row) => row.author, cell: (row) => name(row.author) },
          ...data.p.map((p, index) => number(`> ${p}`, null, (row) => row.fast_p[index], (row) => percent(row.fast_p[index])))],
      })) : null,
    ];
  }

  function find(data, words) {
    const wanted = words.toLowerCase();
    const links = new Map();
    for (const item of data.definitions) if (item[1].toLowerCase().includes(wanted)) links.set(`#/definition/${item[0]}`, [item[1], "definition"]);
    for (const row of data.solutions) {
      if (links.size >= 30) break;
      if (row.solution.toLowerCase().includes(wanted)) links.set(`#/solution/${row.id}`, [row.solution, "solution"]);
      if (row.author.toLowerCase().includes(wanted)) links.set(`#/?${new URLSearchParams({ author: row.author })}`, [row.author, "author"]);
    }
    return [...links];
  }
  return { show, leaderboard, find };
})();
