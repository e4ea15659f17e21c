// The charts: latency over an axis, the roofline, fast_p. The page also has the numbers of each chart in a table.
"use strict";
fibReport.charts = (() => {
  const { el, time, tick, digits } = fibReport;
  const COLOURS = 8;
  const plots = new Set();
  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const colour = (index) => style(`--series-${index % COLOURS}`);

  // A logarithmic axis within a decade has a label at each tick, over few decades at 1, 2 and 5, else at powers of ten.
  function tell(plot, splits, index) {
    const { min, max } = plot.scales[index ? "y" : "x"];
    const digitsTold = max / min < 12 ? [1, 2, 3, 4, 5, 6, 7, 8, 9] : max / min < 200 ? [1, 2, 5] : [1];
    return splits.map((split) => (digitsTold.some((digit) => Math.abs(split / 10 ** Math.floor(Math.log10(split) + 1e-9) - digit) < 1e-6) ? split : null));
  }
  function axis(label, show, size, isLog, space = 42) {
    return {
      label, stroke: () => style("--ink"), grid: { stroke: () => style("--grid"), width: 1 }, ticks: { stroke: () => style("--line") },
      font: "12px system-ui", labelFont: "12px system-ui", labelSize: 22, size, space, filter: isLog ? tell : undefined,
      values: (_, splits) => splits.map((split) => (split === null ? "" : show(split))),
    };
  }
  // Bounds of a logarithmic scale, with a margin, also if all values are equal.
  function bounds(values) {
    const known = values.filter((value) => value > 0);
    if (!known.length) return [0.1, 10];
    return [Math.min(...known) / 1.5, Math.max(...known) * 1.5];
  }

  // lines: {name, y: values at x, low, high, dots: no line between}. x ascends, and may repeat a value.
  // tickY formats a value at the axis, showY a measured value.
  function draw({ label, x, lines, xLabel, yLabel, showX, showY, tickY = showY, logX, logY, describe, margin = 0, space, isTime = false }) {
    const readout = el("p", { class: "readout" }, "Point at the chart to read its values.");
    const host = el("div", { class: "chart", role: "img", "aria-label": label });
    const legend = el("ul", { class: "legend" }, lines.map((line, index) =>
      el("li", null, el("span", { class: `swatch series-${index % COLOURS}` }), fibReport.name(line.name))));
    const figure = el("figure", null, el("figcaption", null, label), host, legend, readout);
    const series = lines.map((line, index) => ({
      label: String(index), stroke: () => colour(index), width: line.dots ? 0 : 1.5, spanGaps: true, dash: index >= 4 ? [6, 4] : undefined,
      paths: line.dots ? () => null : undefined, points: { show: !line.plain, size: 6, fill: () => colour(index) },
    }));
    const ys = lines.flatMap((line) => [...line.y, ...(line.low || []), ...(line.high || [])]).filter((value) => value > 0);
    const [lowY, highY] = bounds(ys);
    const [lowX, highX] = logX ? bounds(x) : [Math.min(...x) - margin, Math.max(...x) + margin];

    function drawIntervals(plot) {
      plot.ctx.save();
      lines.forEach((line, index) => {
        if (!line.low) return;
        plot.ctx.strokeStyle = colour(index);
        plot.ctx.lineWidth = devicePixelRatio;
        plot.ctx.beginPath();
        x.forEach((value, place) => {
          const [low, high] = [line.low[place], line.high[place]];
          if (!(high > 0)) return;
          const across = plot.valToPos(value, "x", true);
          plot.ctx.moveTo(across, plot.valToPos(Math.max(low, lowY), "y", true));
          plot.ctx.lineTo(across, plot.valToPos(high, "y", true));
        });
        plot.ctx.stroke();
      });
      plot.ctx.restore();
    }
    function read(plot) {
      const place = plot.cursor.idx;
      if (place === null || place === undefined) return;
      const told = lines.filter((line) => line.y[place] !== null && line.y[place] !== undefined)
        .map((line, index) => [index ? "; " : "", fibReport.name(line.name), ` ${showY(line.y[place])}`]);
      readout.replaceChildren(`${describe ? describe(place) : `${xLabel} ${showX(x[place])}`}: `, ...told.flat());
    }
    requestAnimationFrame(() => {
      const width = () => Math.max(260, Math.floor(host.clientWidth));
      const plot = new uPlot({
        width: width(), height: 320, tzDate: (second) => uPlot.tzDate(new Date(second * 1000), "Etc/UTC"), legend: { show: false }, cursor: { drag: { x: false, y: false } },
        scales: {
          x: { time: isTime, distr: logX ? 3 : 1, range: [lowX, highX] },
          y: { distr: logY ? 3 : 1, range: logY ? [lowY, highY] : [0, 1.02] },
        },
        axes: [axis(xLabel, showX, 34, logX, space), axis(yLabel, tickY, 64, logY)], series: [{}, ...series],
        hooks: { draw: [drawIntervals], setCursor: [read] },
      }, [x, ...lines.map((line) => line.y)], host);
      plots.add(plot);
      new ResizeObserver(() => plot.setSize({ width: width(), height: 320 })).observe(host);
    });
    return figure;
  }

  function latency(data, series, axisIndex) {
    const order = data.workloads.map((_, index) => index)
      .filter((index) => data.workloads[index][1][axisIndex] > 0)
      .sort((one, two) => data.workloads[one][1][axisIndex] - data.workloads[two][1][axisIndex]);
    if (!order.length || !series.length) return null;
    const lines = series.map((item) => {
      const at = new Map(item.rows.map((row) => [row[0], row]));
      const pick = (place) => order.map((index) => { const row = at.get(index); return row && row[place] > 0 ? row[place] : null; });
      return { name: item.name, y: pick(2), low: pick(3), high: pick(4) };
    });
    const axisName = data.axes[axisIndex];
    return draw({
      label: `Latency over ${axisName}, lower is better; bars are 95 % intervals`, lines, x: order.map((index) => data.workloads[index][1][axisIndex]),
      xLabel: axisName, yLabel: "latency", showX: digits, showY: time, tickY: tick, logX: true, logY: true,
      describe: (place) => data.axes.map((name, index) => `${name}=${data.workloads[order[place]][1][index]}`).join(" "),
    });
  }

  function roofline(data, series, hardware) {
    const order = data.workloads.map((_, index) => index).filter((index) => data.workloads[index][2] > 0 && data.workloads[index][3] > 0)
      .sort((one, two) => data.workloads[one][2] / data.workloads[one][3] - data.workloads[two][2] / data.workloads[two][3]);
    if (!order.length || !series.length) return null;
    const points = order.map((index) => ({ index, x: data.workloads[index][2] / data.workloads[index][3] }));
    const peak = data.peaks[hardware];
    const units = ["fp64", "fp32", "tf32", "fp16", "fp8", "fp4"];
    const rate = (unit) => { for (let place = units.indexOf(unit); place >= 0; place--) if (peak.tflops[units[place]]) return peak.tflops[units[place]]; return Math.max(...Object.values(peak.tflops)); };
    const most = peak && rate(data.workloads[order[0]][4]);
    if (peak) { // the limit bends at its ridge, and ends beyond all workloads
      const ridge = most / peak.tb;
      const ends = [ridge, ...points.map(({ x }) => x)];
      points.push({ x: Math.min(...ends) / 2 }, { x: ridge }, { x: Math.max(...ends) * 2 });
      points.sort((one, two) => one.x - two.x);
    }
    const lines = series.map((item) => {
      const at = new Map(item.rows.map((row) => [row[0], row]));
      return { name: item.name, dots: true, y: points.map(({ index }) => { const row = at.get(index); return row && row[2] > 0 ? data.workloads[index][2] / row[2] / 1e9 : null; }) };
    });
    const unit = peak ? [1, "TFLOP/s"] : [1000, "GFLOP/s"];
    for (const line of lines) line.y = line.y.map((value) => (value === null ? null : value * unit[0]));
    if (peak) {
      lines.push({ name: `limit of ${peak.name}: ${digits(peak.tb)} TB/s, ${digits(most)} TFLOP/s`, plain: true, y: points.map(({ x }) => Math.min(most, x * peak.tb)) });
    }
    return draw({
      label: peak ? "Roofline: operations a second over operations a byte, higher is better" : "Operations a second over operations a byte, higher is better; the limits of this hardware are not listed",
      lines, x: points.map(({ x }) => x), xLabel: "FLOP a byte", yLabel: unit[1], showX: digits, showY: digits, logX: true, logY: true,
    });
  }

  // Items: {name, rows: [second, latency, low, high] of each verdict}.
  function history(items, workload) {
    const x = [...new Set(items.flatMap(({ rows }) => rows.map(([second]) => second)))].sort((one, two) => one - two);
    const lines = items.map(({ name, rows }) => {
      const at = new Map(rows.map((row) => [row[0], row]));
      const pick = (place) => x.map((second) => at.get(second)?.[place] ?? null);
      return { name, y: pick(1), low: pick(2), high: pick(3) };
    });
    const day = (second) => new Date(second * 1000).toISOString().slice(0, 16).replace("T", " ");
    return draw({
      label: `Latency of ${workload} from run to run, lower is better; bars are 95 % intervals`, lines, x, xLabel: "time of the verdict, UTC", yLabel: "latency",
      showX: day, showY: time, tickY: tick, logY: true, margin: (x[x.length - 1] - x[0]) * 0.04 + 60, space: 130, isTime: true, describe: (place) => day(x[place]),
    });
  }

  // The theme has changed, so the colours are read again.
  function redraw() {
    for (const plot of plots) if (plot.root.isConnected) plot.redraw(); else plots.delete(plot);
  }

  function fastP(p, rows) {
    const lines = rows.slice(0, COLOURS).map((row) => ({ name: row.author, y: row.fast_p }));
    return draw({ label: "Share of an author's workloads that passed and took less than 1 / p of the baseline's time", lines, x: p, xLabel: "p: times the speed of the baseline", yLabel: "share of workloads", showX: digits, showY: (value) => digits(value) });
  }
  return { latency, roofline, history, fastP, redraw, COLOURS };
})();
