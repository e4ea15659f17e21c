// Common to all pages: data loaded on demand, elements made only of text, and readable numbers.
"use strict";
const fibReport = (() => {
  const kept = new Map();
  const asked = new Map();
  const KEY = /^(overview|[ds]_[0-9a-f]{16})$/;

  // A data file calls this; its content is JSON in a string.
  function keep(key, text) {
    kept.set(key, JSON.parse(text));
  }

  function load(key) {
    if (!KEY.test(key)) return Promise.reject(new Error("there is no such page"));
    if (kept.has(key)) return Promise.resolve(kept.get(key));
    if (!asked.has(key)) {
      asked.set(key, new Promise((resolve, reject) => {
        const script = document.createElement("script");
        script.src = `data/${key}.js`;
        script.onload = () => (kept.has(key) ? resolve(kept.get(key)) : reject(new Error(`data/${key}.js is damaged`)));
        script.onerror = () => reject(new Error(`data/${key}.js is not in the folder`));
        document.head.append(script);
      }));
    }
    return asked.get(key);
  }

  // Make an element. Strings become text, never markup. Attributes come from these scripts, not from data.
  function el(tag, attributes, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) {
      if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
    }
    element.append(...children.flat().filter((child) => child !== null && child !== undefined));
    return element;
  }

  // A name may break after _ and /, so that words and numbers stay whole.
  const name = (text) => el("bdi", null, String(text).split(/(?<=[_/])/).flatMap((part, at) => (at ? [el("wbr"), part] : [part])));
  const link = (href, text) => el("a", { href }, name(text));
  const more = (open, summary, ...children) => el("details", { open }, el("summary", null, summary), ...children);

  // Measured values have three digits, so that a column aligns. Ticks and counts have no trailing zeros.
  function time(ms, show = measured) {
    if (ms === null || ms === undefined) return "–";
    const [value, unit] = ms >= 1000 ? [ms / 1000, "s"] : ms >= 1 ? [ms, "ms"] : [ms * 1000, "µs"];
    return `${show(value)}\u00a0${unit}`;
  }
  function digits(value, least = 1) {
    if (value === null || value === undefined) return "–";
    const size = Math.abs(value);
    if (size !== 0 && (size < 0.001 || size >= 1e6)) return value.toExponential(2);
    return value.toLocaleString("en", { minimumSignificantDigits: least, maximumSignificantDigits: size >= 1000 ? 4 : 3 });
  }
  const measured = (value) => digits(value, 3);
  const tick = (ms) => time(ms, digits);
  const times = (ratio) => (ratio === null || ratio === undefined ? "–" : `${measured(ratio)}×`);
  const percent = (share) => (share === null || share === undefined ? "–" : `${(share * 100).toFixed(share === 0 || share === 1 ? 0 : 1)}\u00a0%`);
  const range = (low, high, show) => (low === null || high === null || low === undefined ? "" : `${show(low)} to ${show(high)}`);

  // A number with its interval below it, if it has one.
  function withRange(text, low, high, show) {
    const interval = range(low, high, show);
    return el("span", null, text, interval ? el("small", { class: "range" }, interval) : null);
  }

  const [CONFIRMED, NOT_CONFIRMED, INDICATIVE] = ["confirmed", "not confirmed", "CPU: indicative"];
  // A caption. Results of only CPUs are indicative.
  const weightNote = (weighted) => (weighted ? el("p", { class: "quiet" }, "Means are weighted by workload weights; medians and counts are not.") : null);
  function captionOf(standings, text) {
    const ranked = standings.filter(Boolean);
    return ranked.length && ranked.every((standing) => standing === INDICATIVE) ? `${INDICATIVE}. ${text}` : text;
  }
  const unconfirmed = (standing) => (standing === NOT_CONFIRMED ? el("small", { class: "range" }, standing) : null);

  // The columns of solutions: the name, below it on a phone the count; the count of passed workloads, and below it why some failed or have no time.
  function counted({ passed, judged, latency, failure, quick, standing }) {
    const shownStanding = standing === NOT_CONFIRMED ? standing : "";
    const text = [failure || (quick ? "quick look" : passed && latency === null ? "no time that counts" : ""), shownStanding].filter(Boolean).join(", ");
    return el("span", { class: passed === judged ? "good" : "bad" }, `${passed}/${judged}`, text ? el("small", { class: "range" }, name(text)) : null);
  }

  function status(word) {
    return el("span", { class: `status ${word === "PASSED" ? "good" : "bad"}` }, word);
  }

  return { keep, load, kept, el, name, link, more, time, tick, digits, times, percent, range, withRange, counted, status, captionOf, weightNote, unconfirmed, CONFIRMED };
})();
