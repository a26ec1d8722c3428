// Draws the page that the address names.
"use strict";
(async () => {
  const { el, data, address, blocks, views } = geofix;
  const main = document.getElementById("main"), nav = document.getElementById("nav"), menu = document.getElementById("menu");
  let site;
  try { site = await data("site"); } catch (error) { main.replaceChildren(el("p", { class: "words bad" }, `The site is not whole: ${error.message}. Run geofix review again.`)); return; }
  document.title = `geofix review ${site.snapshot.slice(0, 10)}`;
  document.getElementById("snapshot").replaceChildren(el("code", {}, site.snapshot.slice(0, 12)), " ", el("span", { class: `state ${site.decision.status}` }, site.decision.status));

  const groups = [...new Set(site.pages.filter((page) => !page.hidden).map((page) => page.group))];
  nav.append(...groups.map((group) => el("div", {}, el("h2", {}, group), el("ul", {}, site.pages.filter((page) => page.group === group && !page.hidden).map((page) => el("li", {}, el("a", { href: `#/${page.id}`, "data-page": page.id }, page.title)))))));
  const toggle = (open) => { menu.setAttribute("aria-expanded", String(open)); document.body.classList.toggle("open", open); };
  menu.addEventListener("click", () => toggle(menu.getAttribute("aria-expanded") !== "true"));
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") toggle(false); });

  let drawn = 0;
  async function show() {
    const { words, query } = address(), [name, ...rest] = words, turn = ++drawn;
    geofix.keys = null;
    toggle(false);
    const page = site.pages.find((one) => one.id === name);
    const owner = { picture: "pictures", trajectory: "trajectories", answer: "leaderboard" }[name] || name;
    for (const one of nav.querySelectorAll("a")) { if (one.dataset.page === owner) one.setAttribute("aria-current", "page"); else one.removeAttribute("aria-current"); }
    main.setAttribute("aria-busy", "true");
    let content;
    try {
      if (views[name]) content = [await views[name](rest, query)];
      else if (page) content = [el("h1", {}, page.title), page.about ? el("p", { class: "lead" }, page.about) : null, ...(await data(page.id)).map((block) => (blocks[block.block] || unknown)(block))];
      else content = [el("h1", {}, "No such page"), el("p", {}, el("a", { href: "#/start" }, "To the verdict"))];
    } catch (error) {
      content = [el("h1", {}, "This page cannot be shown"), el("p", { class: "words bad" }, error.message)];
    }
    if (turn !== drawn) return; // another page was asked for meanwhile
    main.replaceChildren(...content.filter(Boolean));
    main.removeAttribute("aria-busy");
    main.dataset.page = name;
    window.scrollTo(0, 0);
    if (turn > 1) main.focus({ preventScroll: true });
  }
  const unknown = (block) => el("p", { class: "muted" }, `This site is older than its data: it cannot draw “${block.block}”.`);
  window.addEventListener("hashchange", show);
  await show();
})();
