// Plots, drawn by uPlot.
"use strict";
(() => {
  const { el, blocks, library, number } = geofix;
  const NAMED = { train: "--train", validation: "--validation", benchmark: "--benchmark", "last approved": "--none", now: "--train", mastered: "--kept", learnable: "--validation", intractable: "--none" };
  const ORDER = ["--train", "--benchmark", "--validation", "--kept", "--failed", "--none"];
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const colour = (name, at) => css(NAMED[name] || ORDER[at % ORDER.length]);
  const HEIGHT = 240;

  function axes(more) {
    const stroke = css("--muted"), grid = { stroke: css("--line"), width: 1 };
    return more.map((axis) => ({ stroke, grid, ticks: grid, font: "12px system-ui, sans-serif", ...axis }));
  }

  function frame(block) {
    const place = el("div", { class: "plot" });
    const node = el("figure", { class: "chart" }, el("figcaption", {}, block.title), place);
    return { node, place };
  }

  /** Draws when the figure is in the page and as wide as it will be; again when the width changes. */
  function draw(place, make) {
    let plot = null;
    const seen = new IntersectionObserver(async (entries) => {
      if (!entries.some((one) => one.isIntersecting)) return;
      seen.disconnect();
      await library("uplot", "uPlot.iife.min.js", "uPlot.min.css");
      plot = make(place.clientWidth);
      new ResizeObserver(() => { if (place.clientWidth) plot.setSize({ width: place.clientWidth, height: plot.height }); }).observe(place);
    }, { rootMargin: "300px" });
    seen.observe(place);
  }

  /** A table of the same numbers for readers who do not see the plot. */
  function spoken(head, rows) {
    return el("details", { class: "numbers" }, el("summary", {}, "numbers"), el("div", { class: "scroll" }, el("table", {},
      el("thead", {}, el("tr", {}, head.map((text) => el("th", {}, text)))),
      el("tbody", {}, rows.map((row) => el("tr", {}, row.map((cell, at) => el("td", { class: at ? "n" : null }, cell === null ? "–" : String(number(cell))))))))));
  }

  blocks.bars = (block) => {
    const { node, place } = frame(block);
    const names = Object.keys(block.series), count = names.length, share = block.unit === "share";
    const x = block.labels.map((_, at) => at);
    // Bars of one label stand side by side: each series has its own place beside the label's.
    const wide = 0.82 / count;
    const values = (text) => (share ? `${Math.round(text * 100)} %` : number(text));
    draw(place, (width) => {
      const room = width / Math.max(block.labels.length, 1), longest = Math.max(0, ...block.labels.map((label) => label.length));
      const narrow = room < 7.2 * longest + 6;
      const paths = names.map((_, at) => uPlot.paths.bars({ size: [wide, 60], align: 0, disp: { x0: { unit: 1, values: (u) => u.data[0].map((v) => v - 0.41 + at * wide) }, size: { unit: 1, values: (u) => u.data[0].map(() => wide * 0.94) } } }));
      return new uPlot({
        width, height: HEIGHT + (narrow ? 60 : 0), legend: { show: count > 1, live: false }, cursor: { show: false }, padding: [12, 8, 0, 0],
        scales: { x: { time: false, range: [-0.6, Math.max(block.labels.length, 1) - 0.4] }, y: { range: (u, low, high) => [0, high > 0 ? high * 1.08 : 1] } },
        axes: axes([{ grid: { show: false }, splits: () => x, values: (u, at) => at.map((one) => { const label = block.labels[one] ?? ""; return label.length > 18 ? `${label.slice(0, 17)}…` : label; }), rotate: narrow ? -55 : 0, size: narrow ? Math.min(120, 30 + 6 * longest) : 34 }, { values: (u, at) => at.map(values), size: 56 }]),
        series: [{}, ...names.map((name, at) => ({ label: name, fill: colour(name, at), stroke: colour(name, at), width: 0, paths: paths[at], points: { show: false } }))],
      }, [x, ...names.map((name) => block.series[name])], place);
    });
    node.append(spoken(["", ...names], block.labels.map((label, at) => [label, ...names.map((name) => block.series[name][at])])));
    return node;
  };

  blocks.lines = (block) => {
    const { node, place } = frame(block);
    const names = Object.keys(block.series);
    draw(place, (width) => new uPlot({
      width, height: HEIGHT, legend: { show: true }, padding: [12, 12, 0, 0],
      scales: { x: { time: false }, y: { range: (u, low, high) => low === 0 && high === 0 ? [0, 1] : uPlot.rangeNum(low ?? 0, high ?? 1, 0.1, true) } }, // all zeros would end at 100
      axes: axes([{ label: block.x_label || null, labelSize: block.x_label ? 18 : 0, size: 34, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 1e5] }, { size: 66, values: (u, at) => at.map((one) => String(Number(one.toPrecision(3)))) }]),
      series: [{ label: block.x_label || "x" }, ...names.map((name, at) => ({ label: name, stroke: colour(name, at), width: 2, points: { show: block.x.length < 60, size: 4 } }))],
    }, [block.x, ...names.map((name) => block.series[name])], place));
    return node;
  };
})();
