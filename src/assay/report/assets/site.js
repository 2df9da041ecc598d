/* The pages' own code. The bundle above leaves short names behind, hence a function of its own. */
(function () {
  "use strict";

  const $ = (selector, within = document) => within.querySelector(selector);
  const $$ = (selector, within = document) => [...within.querySelectorAll(selector)];
  const read = (id) => JSON.parse(document.getElementById(id).textContent);

  function make(tag, properties = {}, ...children) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(properties)) {
      if (name in node) node[name] = value;
      else node.setAttribute(name, value);
    }
    node.append(...children);
    return node;
  }

  /* Values in the order a reader expects: numbers by size, text by alphabet, nothing last either way. */
  function compare(a, b, direction) {
    const blank = (value) => value === null || value === "";
    if (blank(a) || blank(b)) return blank(a) - blank(b);
    if (typeof a === "number" && typeof b === "number") return direction * (a - b);
    return direction * String(a).localeCompare(String(b), "en", { numeric: true });
  }

  /* Gives each heading cell a button that sorts; `sort` is told the column and the direction. */
  function sortable(headings, sort) {
    for (const [column, heading] of headings.entries()) {
      const button = make("button", { type: "button" }, ...heading.childNodes);
      heading.replaceChildren(button);
      heading.setAttribute("aria-sort", "none");
      button.addEventListener("click", () => {
        const ascending = heading.getAttribute("aria-sort") !== "ascending";
        for (const other of headings) other.setAttribute("aria-sort", "none");
        heading.setAttribute("aria-sort", ascending ? "ascending" : "descending");
        sort(column, ascending ? 1 : -1);
      });
    }
  }

  function methods() {
    const table = $("#methods");
    const form = $("#filters");
    if (!table || !form) return;
    const rows = $$("tbody tr", table);
    const fields = ["query", "area", "task", "verdict", "tier"];

    function fits(row, wanted) {
      const words = wanted.query.toLowerCase().split(/\s+/).filter(Boolean);
      return words.every((word) => row.dataset.search.includes(word)) &&
        ["area", "task", "verdict", "tier"].every((name) => !wanted[name] || row.dataset[name].split("|").includes(wanted[name]));
    }

    function apply() {
      const wanted = Object.fromEntries(fields.map((name) => [name, form.elements[name].value]));
      let shown = 0;
      for (const row of rows) {
        row.hidden = !fits(row, wanted);
        shown += !row.hidden;
        for (const tile of $$(".tile", row)) tile.classList.toggle("dim", wanted.verdict !== "" && tile.dataset.verdict !== wanted.verdict);
      }
      $("#shown").value = shown === rows.length ? `${rows.length} methods` : `${shown} of ${rows.length} methods`;
      $("#nothing").hidden = shown > 0;
      return wanted;
    }

    /* The filters stand in the address, so that a filtered page can be linked to. */
    function remember(wanted) {
      const kept = new URLSearchParams(Object.entries(wanted).filter(([, value]) => value));
      try { history.replaceState(null, "", `#${kept}`); } catch { /* some browsers refuse this on files */ }
    }

    function recall() {
      const asked = new URLSearchParams(location.hash.slice(1));
      for (const name of fields) if (asked.has(name)) form.elements[name].value = asked.get(name);
      for (const select of $$("select", form)) if (select.selectedIndex < 0) select.selectedIndex = 0;
      apply();
    }

    sortable($$("thead th", table), (column, direction) => {
      const key = (row) => {
        const text = row.cells[column].dataset.sort;
        return text !== "" && Number.isFinite(Number(text)) ? Number(text) : text;
      };
      rows.sort((a, b) => compare(key(a), key(b), direction));
      table.tBodies[0].append(...rows);
    });
    form.hidden = false;
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("input", () => remember(apply()));
    form.addEventListener("reset", () => setTimeout(() => remember(apply())));
    addEventListener("hashchange", recall);
    addEventListener("keydown", (event) => {
      for (const tiles of $$(".tiles")) tiles.classList.toggle("quiet", event.key === "Escape");
    });
    recall();
  }

  /* A loader that loads nothing: the specifications bring their data along. */
  const nothing = {
    load: () => Promise.reject(new Error("outside data is not loaded")),
    sanitize: () => Promise.reject(new Error("outside links are not followed")),
  };

  function drawings() {
    for (const place of $$("[data-spec]")) {
      const options = { actions: false, renderer: "svg", config: read("chart-config"), loader: nothing };
      window.vegaEmbed(place, read(place.dataset.spec), options).then(() => {
        const svg = $("svg", place);
        if (svg.getBoundingClientRect().width > place.clientWidth + 1) place.tabIndex = 0;
      }).catch((error) => place.replaceChildren(make("p", { className: "warning" }, `This chart can't be drawn: ${error.message}`)));
    }
  }

  const PAGE = 50;

  function cells() {
    const place = $("#cell-table");
    if (!place) return;
    const data = read("cell-data");
    const state = { query: "", chosen: {}, column: null, direction: 1, page: 0 };
    const filters = ["dataset", "arm", "status"].filter((name) => data.columns.includes(name));

    function found() {
      const words = state.query.toLowerCase().split(/\s+/).filter(Boolean);
      const rows = data.rows.filter((row) =>
        filters.every((name) => !state.chosen[name] || row[data.columns.indexOf(name)] === state.chosen[name]) &&
        words.every((word) => row.some((value) => String(value ?? "").toLowerCase().includes(word))));
      return state.column === null ? rows : rows.sort((a, b) => compare(a[state.column], b[state.column], state.direction));
    }

    const body = make("tbody");
    const count = make("output", { "aria-live": "polite" });
    const back = make("button", { type: "button" }, "Previous");
    const next = make("button", { type: "button" }, "Next");

    function show() {
      const rows = found();
      const last = Math.max(0, Math.ceil(rows.length / PAGE) - 1);
      state.page = Math.min(state.page, last);
      const start = state.page * PAGE;
      const visible = rows.slice(start, start + PAGE);
      body.replaceChildren(...visible.map(line));
      const range = rows.length ? `${start + 1} to ${start + visible.length} of ${rows.length} cells` : "No cell fits these filters";
      count.value = data.total > data.rows.length ? `${range} (this page carries the first ${data.rows.length} of ${data.total}; the CSV has all)` : range;
      back.disabled = state.page === 0;
      next.disabled = state.page === last;
    }

    const status = data.columns.indexOf("status");

    function line(row) {
      const lost = status >= 0 && row[status] !== "measured";
      return make("tr", { className: lost ? "lost" : "" }, ...row.map((value, column) => make("td", {
        className: data.numeric[column] ? "number" : column === status ? "status" : "text",
      }, value === null ? "" : data.numeric[column] ? shorter(value) : String(value))));
    }

    const headings = data.columns.map((name, column) => make("th", { scope: "col", className: data.numeric[column] ? "number" : "" }, name));
    const table = make("table", { className: "cells" },
      make("caption", { className: "unseen" }, "Cells of the study"), make("thead", {}, make("tr", {}, ...headings)), body);

    const search = make("input", { type: "search", autocomplete: "off" });
    search.addEventListener("input", () => { state.query = search.value; state.page = 0; show(); });
    const selects = filters.map((name) => {
      const values = [...new Set(data.rows.map((row) => row[data.columns.indexOf(name)]))].sort();
      const select = make("select", {}, make("option", { value: "" }, "all"), ...values.map((value) => make("option", { value }, String(value))));
      select.addEventListener("change", () => { state.chosen[name] = select.value; state.page = 0; show(); });
      return make("label", {}, `${name[0].toUpperCase()}${name.slice(1)} `, select);
    });
    const save = make("button", { type: "button" }, "Save these rows (CSV)");
    save.addEventListener("click", () => download(`${document.title.split(":")[0]}-cells.csv`, csv([data.columns, ...found()])));

    sortable(headings, (column, direction) => { Object.assign(state, { column, direction, page: 0 }); show(); });
    back.addEventListener("click", () => { state.page -= 1; show(); });
    next.addEventListener("click", () => { state.page += 1; show(); });
    place.replaceChildren(
      make("div", { className: "filters cell-filters", role: "search", "aria-label": "Filter the cells" },
        make("label", { className: "search" }, "Search ", search), ...selects, save),
      make("div", { className: "scroll", tabIndex: 0, role: "region", "aria-label": "Table of cells" }, table),
      make("div", { className: "pager" }, back, next, count));
    show();
  }

  function shorter(value) {
    if (Number.isInteger(value)) return String(value).replace("-", "−");
    return String(Number(value.toPrecision(4))).replace("-", "−");
  }

  /* Text that a spreadsheet would take for a formula is given a leading apostrophe. */
  function csv(rows) {
    const field = (value) => {
      if (value === null) return "";
      if (typeof value === "number") return String(value);
      const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : String(value);
      return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
    };
    return rows.map((row) => row.map(field).join(",")).join("\n") + "\n";
  }

  function download(name, text) {
    const link = make("a", { href: URL.createObjectURL(new Blob([text], { type: "text/csv" })), download: name });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }

  function copies() {
    if (!navigator.clipboard) return;
    for (const block of $$("pre.code")) {
      const box = make("div", { className: "code-box" });
      block.replaceWith(box);
      const button = make("button", { type: "button", "aria-label": `Copy: ${block.getAttribute("aria-label")}` }, "Copy");
      button.addEventListener("click", () => navigator.clipboard.writeText(block.textContent).then(
        () => { button.textContent = "Copied"; setTimeout(() => { button.textContent = "Copy"; }, 1500); },
        () => { button.textContent = "Select it"; }));
      box.append(block, button);
    }
  }

  methods();
  cells();
  copies();
  drawings();
})();
