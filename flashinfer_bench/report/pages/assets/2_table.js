// A table that sorts by its headings, and first shows FIRST_ROWS rows. If it is wide, its own region scrolls.
"use strict";
fibReport.table = (() => {
  const { el } = fibReport;
  const FIRST_ROWS = 100;

  const absent = (item) => item === null || item === undefined || item === "";
  const classes = (column) => [column.number ? "number" : "", column.kind || ""].filter(Boolean).join(" ") || null;

  // columns: {label, value(row) to sort by, cell(row) to show, number, hint, optional: omitted if no row has a value,
  // kind: "wide" is not shown on a phone, "control" is not printed, "tight" breaks long names early, "short" only on a phone}; sort: {column, down}, a column before the optional columns;
  // below(row): shown in the whole width below a row, and not printed.
  const columnsOf = (all, rows) => all.filter((column) => !column.optional || rows.some((row) => !absent(column.value(row))));
  function table({ caption, columns: all, rows, sort, empty, below }) {
    const columns = columnsOf(all, rows);
    let order = sort || null;
    let shown = FIRST_ROWS;
    const body = el("tbody");
    const heads = columns.map((column, index) => {
      const button = el("button", { type: "button", title: column.hint, onclick: () => sortBy(index) }, column.label);
      return el("th", { scope: "col", class: classes(column) }, column.value ? button : column.label);
    });
    const rest = el("button", { type: "button", class: "rest", onclick: () => { shown = rows.length; draw(); } });

    function sortBy(index) {
      const down = order && order.column === index ? !order.down : Boolean(columns[index].number && columns[index].down);
      order = { column: index, down };
      draw();
    }
    function sorted() {
      if (!order) return rows;
      const { value } = columns[order.column];
      const sign = order.down ? -1 : 1;
      return [...rows].sort((first, second) => {
        const [one, two] = [value(first), value(second)];
        if (absent(one) || absent(two)) return absent(one) - absent(two);
        return sign * (typeof one === "string" ? one.localeCompare(two, "en", { numeric: true }) : one - two);
      });
    }
    function draw() {
      heads.forEach((head, index) => {
        if (order && order.column === index) head.setAttribute("aria-sort", order.down ? "descending" : "ascending");
        else head.removeAttribute("aria-sort");
      });
      body.replaceChildren(...sorted().slice(0, shown).flatMap((row) => [el("tr", null, columns.map((column) => el("td", { class: classes(column) }, column.cell(row)))),
        ...(below ? [el("tr", { class: "below control" }, el("td", { colspan: columns.length }, below(row)))] : [])]));
      rest.textContent = `Show all ${rows.length} rows`;
      rest.hidden = rows.length <= shown;
    }
    draw();
    if (!rows.length) return el("p", { class: "quiet" }, empty || "There is nothing to show.");
    return el("div", { class: "scroll", role: "region", "aria-label": caption, tabindex: "0" },
      el("table", null, el("caption", null, el("span", null, caption)), el("thead", null, el("tr", null, heads)), body), rest);
  }
  return Object.assign(table, { columnsOf });
})();
// A table of the rows with a time that counts, then a table of all others.
fibReport.apart = (rows, isTimed, what, caption, options) => {
  const [timed, others] = [rows.filter(isTimed), rows.filter((row) => !isTimed(row))];
  return [timed.length || !others.length ? fibReport.table({ ...options, caption, rows: timed }) : null,
    others.length ? fibReport.table({ ...options, caption: `${what} that passed no workload, or whose times do not count`, rows: others }) : null];
};
