// What agents did with a picture: the list with its filters, and one conversation.
"use strict";
(() => {
  const { el, blocks, views, data, link, image, command, onLake, original, number, address, chunkOf, km, thumbnail } = geofix;
  const PAGE = 60;
  const off = (error) => (error === null || error === undefined ? "no point" : `${km(error)} off`);

  blocks.trajectories = (block) => {
    const query = address().query, results = el("div", { class: "grid" }), said = el("p", { class: "muted", role: "status" });
    const more = el("button", { type: "button", class: "more" }, "Show more");
    const values = (name) => [...new Set(block.rows.flatMap((row) => row[name]))].sort();
    let found = [], shown = 0;
    const show = () => {
      for (const row of found.slice(shown, shown + PAGE)) {
        results.append(el("a", { class: "card", href: `#/trajectory/${row.id}` }, image(row.image, row.title), el("span", { class: "title" }, row.title || row.image),
          el("span", { class: "tags" }, el("span", { class: row.verdict }, row.verdict), row.reasons.map((one) => el("span", { class: "rejected" }, one.replaceAll("_", " "))), el("span", {}, `${off(row.error_km)}`), el("span", {}, `${row.calls} calls`), el("span", {}, row.recipe))));
      }
      shown += PAGE;
      more.hidden = shown >= found.length;
    };
    const update = () => {
      const is = (name, value) => !query.get(name) || value === query.get(name);
      found = block.rows.filter((row) => is("verdict", row.verdict) && is("recipe", row.recipe) && (!query.get("reason") || row.reasons.includes(query.get("reason"))));
      shown = 0;
      results.replaceChildren();
      said.textContent = `${number(found.length)} of ${number(block.rows.length)} trajectories`;
      show();
    };
    const select = (name, label, options) => el("label", { class: "filter" }, label, el("select", { id: `filter-${name}`, onchange: (event) => { if (event.target.value) query.set(name, event.target.value); else query.delete(name); history.replaceState(null, "", `#/trajectories${query.toString() ? `?${query}` : ""}`); update(); } }, el("option", { value: "" }, "all"), options.map((value) => el("option", { value, selected: query.get(name) === value }, value.replaceAll("_", " ")))));
    more.addEventListener("click", show);
    update();
    return el("section", {}, el("form", { class: "filters" }, select("verdict", "Verdict", values("verdict")), select("reason", "Reason", values("reasons")), select("recipe", "Recipe", values("recipe"))), said, results, more);
  };

  const NAMES = { question: "Question", told: "Told", thought: "Thought", call: "Calls", result: "Result", said: "Says", answer: "Answer" };

  function one(step) {
    const pictures = (step.images || []).map(([sha256, extension]) => {
      const node = el("img", { class: "crop", src: original(sha256, extension), alt: "picture given to the model", loading: "lazy" });
      node.addEventListener("error", () => node.replaceWith(el("span", { class: "muted" }, `picture ${sha256.slice(0, 12)}… lies in the lake`)), { once: true });
      return node;
    });
    return el("li", { class: `step ${step.kind}` }, el("b", {}, NAMES[step.kind] || step.kind, step.tool ? ` ${step.tool}` : ""),
      step.text ? el("p", {}, step.text) : null,
      step.lines ? step.lines.length > 2 ? el("details", { open: false }, el("summary", {}, step.lines[0]), el("ul", {}, step.lines.slice(1).map((line) => el("li", {}, line)))) : step.lines.map((line) => el("p", {}, line)) : null,
      pictures.length && step.kind !== "question" ? el("div", {}, pictures) : null);
  }

  geofix.step = one;

  /** A trajectory of the table `trajectories`, or a policy's answer to a benchmark picture. */
  const view = (page, kind, all, none) => async ([id]) => {
    const block = (await data(page)).find((one) => one.block === page);
    const found = (await data(`${kind}-${chunkOf(id, block.chunks)}`))[id];
    if (!found) return el("section", {}, el("h1", {}, none), link(page, all));
    const boxes = found.steps.filter((step) => step.box);
    const points = [];
    if (found.truth) points.push([found.truth[0], found.truth[1], "truth", found.title]);
    if (found.guess) points.push([found.guess[0], found.guess[1], "guess", `${off(found.error_km)}`]);
    return el("article", { class: "picture" },
      el("p", { class: "crumbs" }, link(page, all), link(`picture/${found.image}`, "The picture's history")),
      el("h1", {}, found.title || "Trajectory"),
      el("p", { class: "tags" }, el("span", { class: found.verdict }, found.verdict), found.reasons.map((reason) => el("span", { class: "rejected" }, reason.replaceAll("_", " "))), el("span", {}, `${off(found.error_km)}`), el("span", {}, found.recipe), el("span", {}, `${found.calls} calls`), el("span", {}, `${number(found.tokens)} tokens`)),
      el("div", { class: "columns" },
        el("div", {}, el("div", { class: "boxed" }, image(found.image, found.title, { loading: "eager" }), boxes.map((step, at) => el("span", { class: "box", style: `left:${step.box[0] * 100}%;top:${step.box[1] * 100}%;width:${step.box[2] * 100}%;height:${step.box[3] * 100}%`, title: step.text }, String(at + 1)))),
          points.length ? geofix.smallMap(points) : el("p", { class: "muted" }, "The answer names no point."), command(onLake(`trace ${page === "trajectories" ? id : found.image}`))),
        el("div", {}, el("h2", {}, "What was said and done"), el("ol", { class: "steps" }, found.steps.map(one)))));
  };
  views.trajectory = view("trajectories", "trajectories", "All trajectories", "No such trajectory");
  views.answer = view("leaderboard", "answers", "The leaderboard", "No such answer");
})();
