// The page of the address, the theme, the search, and the keyboard shortcuts.
"use strict";
(() => {
  const { load, el } = fibReport;
  const main = document.getElementById("main");
  const search = document.getElementById("search");
  const found = document.getElementById("found");
  const theme = document.getElementById("theme");
  let turn = 0;

  const go = (hash) => { location.hash = hash; };

  async function page(path, query) {
    const overview = await load("overview");
    const [kind, first, second] = path.split("/").filter(Boolean);
    if (!kind) return ["Overview", fibReport.overview.show(overview, query, go)];
    if (kind === "leaderboard") return ["Leaderboard", fibReport.overview.leaderboard(overview, query, go)];
    if (kind === "definition") { const data = await load(`d_${first}`); return [data.name, fibReport.definition.show(data, query, go)]; }
    if (kind === "solution") { const data = await load(`s_${first}`); return [data.name, fibReport.solution.show(data, overview)]; }
    if (kind === "compare") { const [one, two] = await Promise.all([load(`s_${first}`), load(`s_${second}`)]); return [`${one.name} and ${two.name}`, fibReport.compare.show(one, two)]; }
    throw new Error("there is no such page");
  }
  const title = document.title;
  async function route() {
    const own = ++turn;
    const [path, query] = location.hash.replace(/^#/, "").split("?");
    let shown;
    try { shown = await page(path, new URLSearchParams(query || "")); }
    catch (error) { shown = ["Not found", [el("h1", null, "Not found"), el("p", { class: "note" }, `${error.message}. `, el("a", { href: "#/" }, "Back to the overview"))]]; }
    if (own !== turn) return;
    const [heading, parts] = shown;
    document.title = `${heading} – ${title}`;
    main.replaceChildren(...parts.flat().filter(Boolean));
    main.dataset.page = path || "/";
    document.getElementById("picked").hidden = /^\/compare\//.test(path);
    for (const item of document.querySelectorAll("nav a")) {
      if (item.hash === `#${path || "/"}`) item.setAttribute("aria-current", "page"); else item.removeAttribute("aria-current");
    }
    scrollTo(0, 0);
    const { made, version } = fibReport.kept.get("overview") || {};
    document.getElementById("foot").textContent = made ? `Made ${made} by flashinfer-bench ${version}.` : "";
  }

  function remember(value) { try { localStorage.setItem("fib-theme", value); } catch { /* a page from disk may have no storage */ } }
  function recall() { try { return localStorage.getItem("fib-theme"); } catch { return null; } }
  function setTheme(value) {
    document.documentElement.dataset.theme = value;
    theme.textContent = value === "dark" ? "Light" : "Dark";
    theme.setAttribute("aria-label", `Use the ${value === "dark" ? "light" : "dark"} theme`);
  }
  theme.addEventListener("click", () => {
    const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    setTheme(next);
    remember(next);
    fibReport.charts.redraw();
  });
  setTheme(recall() || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));

  search.addEventListener("input", async () => {
    const links = search.value.trim() ? fibReport.overview.find(await load("overview"), search.value.trim()) : [];
    found.replaceChildren(...links.map(([href, [text, kind]]) => el("li", null, el("a", { href }, fibReport.name(text), el("small", null, ` ${kind}`)))));
    if (search.value.trim() && !links.length) found.append(el("li", null, "Nothing was found."));
    found.hidden = !found.children.length;
  });
  const close = () => { found.hidden = true; search.value = ""; };
  search.addEventListener("keydown", (event) => {
    const first = found.querySelector("a");
    if (event.key === "Enter" && first) go(first.hash);
    if (event.key === "ArrowDown" && first) { first.focus(); event.preventDefault(); }
  });
  found.addEventListener("keydown", (event) => {
    const links = [...found.querySelectorAll("a")];
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    (links[links.indexOf(document.activeElement) + step] || search).focus();
    event.preventDefault();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") close();
    if (event.key === "/" && !/^(input|select|textarea)$/i.test(document.activeElement.tagName)) { search.focus(); event.preventDefault(); }
  });
  document.getElementById("skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
  addEventListener("hashchange", () => { close(); route(); });
  // Paper is white, and a log on it cannot be opened.
  let chosen = null;
  addEventListener("beforeprint", () => {
    chosen = document.documentElement.dataset.theme;
    document.documentElement.dataset.theme = "light";
    for (const item of main.querySelectorAll(":scope > details:not([open])")) { item.open = true; item.dataset.closed = ""; }
    fibReport.charts.redraw();
  });
  addEventListener("afterprint", () => {
    setTheme(chosen || "light");
    for (const item of main.querySelectorAll("details[data-closed]")) { item.open = false; delete item.dataset.closed; }
    fibReport.charts.redraw();
  });
  route();
})();
