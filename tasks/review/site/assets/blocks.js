// Draws the blocks that pages are made of (tasks/review/site/blocks.py).
"use strict";
(() => {
  const { el, blocks, link, image, command, number, values } = geofix;

  blocks.heading = (block) => el("div", { class: "section" }, el("h2", {}, block.text), block.about ? el("p", { class: "muted" }, block.about) : null);
  blocks.words = (block) => el("p", { class: `words ${block.tone}` }, block.text);
  blocks.commands = (block) => el("div", { class: "commands" }, block.lines.map(command));

  /** Files beside the site that open in a tab of their own. */
  blocks.files = (block) => el("p", { class: "row" }, block.items.map(([name, path]) => el("a", { class: "button", href: path, target: "_blank", rel: "noopener" }, name)));

  blocks.figures = (block) => el("div", { class: "figures" }, block.items.map((item) => {
    const inside = [el("b", {}, item.value), item.label];
    return item.link ? el("a", { class: item.tone, href: `#/${item.link}` }, inside) : el("div", { class: item.tone }, inside);
  }));

  function cell(value, kind) {
    if (value === null || value === undefined || value === "") return el("td", {}, "");
    if (kind === "picture") return el("td", { class: "pic" }, el("a", { href: `#/picture/${value}` }, image(value, value), el("code", {}, value.slice(0, 10))));
    if (kind === "trajectory") return el("td", {}, link(`trajectory/${value}`, value.slice(0, 10)));
    if (kind === "answer") return el("td", {}, link(`answer/${value}`, "how"));
    if (kind === "bar") return el("td", { class: "wide" }, el("span", { class: "bar", role: "img", "aria-label": `${Math.round(value * 100)} %` }, el("i", { class: "kept", style: `width:${Math.min(100, value * 100)}%` })));
    if (kind === "percent") return el("td", { class: "n" }, `${(value * 100).toFixed(1)} %`);
    if (kind === "code") return el("td", {}, el("code", {}, String(value)));
    return el("td", { class: kind === "number" ? "n" : null }, String(number(value)));
  }

  blocks.table = (block) => {
    if (!block.rows.length) return el("p", { class: "muted" }, block.empty);
    const head = el("tr", {}, block.columns.map((title, at) => el("th", { class: ["number", "percent"].includes(block.kinds[at]) ? "n" : null, scope: "col" }, title)));
    const rows = block.rows.map((row, at) => {
      const cells = row.map((value, column) => cell(value, block.kinds[column]));
      const place = block.links[at];
      if (place) { // the first cell holds the link, so that the keyboard reaches it; the row is clickable as well
        const first = cells[0];
        if (!first.querySelector("a")) first.replaceChildren(el("a", { href: `#/${place}` }, ...first.childNodes));
      }
      return el("tr", place ? { class: "leads", onclick: (event) => { if (!event.target.closest("a")) location.hash = `/${place}`; } } : {}, cells);
    });
    return el("div", { class: "scroll", tabindex: "0" }, el("table", {}, el("thead", {}, head), el("tbody", {}, rows)));
  };

  blocks.shares = (block) => {
    const known = ["kept", "rejected", "failed", "train", "validation", "benchmark"];
    const legend = [...new Set(block.rows.flatMap((row) => row.parts.map(([name]) => name)))];
    return el("section", {}, el("p", { class: "muted" }, block.title), el("div", { class: "shares" }, block.rows.map((row) => {
      const total = row.parts.reduce((sum, [, count]) => sum + count, 0);
      const bar = el("span", { class: "bar", role: "img", "aria-label": row.parts.map(([name, count]) => `${name} ${count}`).join(", ") },
        row.parts.filter(([, count]) => count > 0).map(([name, count]) => el("i", { class: known.includes(name) ? name : "none", style: `width:${(100 * count) / total}%`, title: `${name}: ${number(count)}` })));
      return [el("span", { class: "label" }, row.link ? link(row.link, row.label) : row.label), bar, el("span", { class: "n" }, number(total))];
    })), el("p", { class: "legend" }, legend.map((name) => el("span", {}, el("i", { class: `key ${known.includes(name) ? name : "none"}` }), name))));
  };

  blocks.pictures = (block) => el("section", {}, block.title ? el("h3", {}, block.title) : null, el("div", { class: "grid" }, block.ids.map((id, at) =>
    el("a", { class: "card", href: `#/picture/${id}` }, image(id, block.captions[at]), el("span", { class: "title" }, block.captions[at] || id)))));

  blocks.verdict = (block) => {
    const { decision, snapshot } = values.get("site");
    const said = { approved: "Approved", rejected: "Rejected", pending: decision.checks_passed ? "Ready to decide" : "Needs attention" }[decision.status] || decision.status;
    const fails = !decision.checks_passed;
    return el("section", { class: `verdict ${decision.status} ${fails ? "fails" : "holds"}` },
      el("p", { class: "pill" }, said),
      el("p", { class: "big" }, block.says),
      el("p", { class: block.precision ? "" : "muted" }, block.precision || "Label precision is not known yet: no marks of people."),
      decision.status === "pending" ? el("div", { class: "commands" }, command(geofix.onLake(`approve ${snapshot.slice(0, 12)}${fails ? ' --force --why "…"' : ""}`)), command(geofix.onLake(`reject ${snapshot.slice(0, 12)} --why "…"`))) : null);
  };

  blocks.leaderboard = (block) => {
    const show = (value) => (value === null ? "–" : Math.abs(value) >= 100 ? number(Math.round(value)) : number(Math.round(value * 1000) / 1000));
    return el("div", { class: "scroll", tabindex: "0" }, el("table", { class: "board" },
      el("thead", {}, el("tr", {}, el("th", {}, "metric"), block.policies.map((name) => el("th", { class: "n" }, name)))),
      el("tbody", {}, block.rows.map((row) => el("tr", {}, el("th", { scope: "row" }, row.metric.replaceAll("_", " ")), row.cells.map(([value, low, high, n], at) =>
        el("td", { class: `n ${row.best.includes(at) ? "best" : ""}` }, show(value), el("small", {}, low === null ? "" : `${show(low)} – ${show(high)}, n ${n}`))))))));
  };
})();
