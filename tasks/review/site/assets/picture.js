// One picture: enlarged, with its history, its neighbours, and a look-around view of a panorama (Pannellum).
"use strict";
(() => {
  const { el, views, data, library, link, image, command, onLake, original, thumbnail, served, number, values, chunkOf, km } = geofix;

  /** The picture as large as the window; falls back to the small copy where the lake is not beside the site. */
  function enlarge(source, small, text) {
    const picture = el("img", { src: source, alt: text });
    picture.addEventListener("error", () => { picture.src = small; }, { once: true });
    const box = el("dialog", { class: "enlarged", "aria-label": text }, el("form", { method: "dialog" }, el("button", { class: "close" }, "Close (Esc)")), el("div", { class: "scroll" }, picture), el("p", {}, text));
    picture.addEventListener("click", () => picture.classList.toggle("full"));
    box.addEventListener("close", () => box.remove());
    document.body.append(box);
    box.showModal();
  }
  geofix.enlarge = enlarge;

  function lookAround(id, about) {
    const place = el("div", { class: "panorama" });
    const button = el("button", { type: "button", class: "primary" }, "Look around");
    button.addEventListener("click", async () => {
      button.replaceWith(place);
      await library("pannellum", "pannellum.js", "pannellum.css");
      const panorama = served() ? original(about.sha256, about.extension) : await data(`panorama/${id}`);
      pannellum.viewer(place, { type: "equirectangular", panorama, autoLoad: true, compass: about.compass !== null, northOffset: about.compass || 0, hfov: 100, keyboardZoom: true });
      place.querySelector(".pnlm-ui, .pnlm-container")?.focus?.();
    });
    return el("div", { class: "look" }, button);
  }

  /** The stored picture itself, or its small copy where the lake is not beside the site. */
  function sharp(id, about) {
    const node = el("img", { src: original(about.sha256, about.extension), alt: about.title || id, style: about.width ? `aspect-ratio:${about.width}/${about.height}` : null });
    node.addEventListener("error", () => node.replaceWith(image(id, about.title, { loading: "eager" })), { once: true });
    return node;
  }

  const step = (one) => el("li", { class: one.tone || "plain" },
    el("div", { class: "head" }, el("b", {}, one.title), one.when ? el("time", {}, one.when) : null),
    el("p", {}, one.text, one.link ? [" ", link(one.link, "see")] : null),
    one.facts && one.facts.length ? el("dl", {}, one.facts.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, String(value))])) : null);

  const others = (title, list, empty) => el("section", {}, el("h2", {}, title), list.length ? el("div", { class: "grid small" }, list.map(([id, text]) => el("a", { class: "card", href: `#/picture/${id}` }, image(id, text), el("span", { class: "title" }, text)))) : el("p", { class: "muted" }, empty));

  views.picture = async ([id]) => {
    const [about] = await data("picture");
    const found = (await data(`picture-${chunkOf(id, about.chunks)}`))[id];
    if (!found) return el("section", {}, el("h1", {}, "No such picture"), el("p", {}, "This snapshot has no picture with the id ", el("code", {}, id), "."), link("pictures", "All pictures"));
    const list = geofix.list || [], at = list.indexOf(id);
    const before = list[at - 1], after = at >= 0 ? list[at + 1] : null;
    const go = (other, text, key) => (other ? el("a", { class: "button", href: `#/picture/${other}`, "data-key": key }, text) : null);
    const picture = el("button", { type: "button", class: "show", "aria-label": "Enlarge", onclick: () => enlarge(original(found.sha256, found.extension), thumbnail(id), `${found.title || id} · ${found.credit}`) }, sharp(id, found));
    const site = values.get("site");
    const canLook = found.kind === "panorama" && (served() || site.panoramas.includes(id));
    const points = found.lat === null ? [] : [[found.lat, found.lon, "picture", found.title || id]];
    return el("article", { class: "picture", "data-id": id },
      el("p", { class: "crumbs" }, link("pictures", "All pictures"), go(before, "← previous", "ArrowLeft"), go(after, "next →", "ArrowRight")),
      el("h1", {}, found.title || "No address"),
      el("p", { class: "tags" }, el("span", { class: found.status.replace(" ", "-") }, found.status), found.reason ? el("span", { class: "rejected" }, found.reason.replaceAll("_", " ")) : null, found.split ? el("span", { class: found.split }, found.split) : null, el("span", {}, found.kind), found.score === null ? null : el("span", {}, `score ${number(found.score)}`), found.categories.map((one) => el("span", {}, one))),
      el("div", { class: "columns" },
        el("div", {}, picture, el("p", { class: "credit" }, found.credit), canLook ? lookAround(id, found) : found.kind === "panorama" ? el("p", { class: "muted" }, "Look around in it: ", el("code", {}, onLake("review --serve"))) : null,
          geofix.markButtons ? geofix.markButtons({ id, sha256: found.sha256, label: found.label, sampled: found.sampled }) : null,
          geofix.noteField ? geofix.noteField({ id, sha256: found.sha256, label: found.label }) : null,
          el("h2", {}, "Look closer"), command(onLake(`trace ${id}`)), found.kind === "panorama" ? command(onLake(`view ${id} --yaw 90 --fov 75 -o view.jpg`)) : command(onLake(`show images --where image_id=${id} --columns all`)),
          points.length ? geofix.smallMap(points) : null, found.lat === null ? null : el("p", { class: "muted" }, `lat ${found.lat.toFixed(5)}, lon ${found.lon.toFixed(5)}`)),
        el("div", {}, el("h2", { id: "history" }, "History"), el("ol", { class: "history" }, found.history.map(step)))),
      others("Nearest pictures", found.neighbours, "There is no other picture."),
      others("Duplicates", found.duplicates, "No other picture has the same bytes, and none was found to be its double."));
  };

  document.addEventListener("keydown", (event) => {
    if (/INPUT|SELECT|TEXTAREA/.test(document.activeElement.tagName) || document.activeElement.closest?.(".panorama, .map") || event.altKey || event.ctrlKey || event.metaKey || document.getElementById("main").hasAttribute("aria-busy")) return;
    const target = document.querySelector(`[data-key="${event.key}"]`);
    if (target && !document.activeElement.classList.contains("card")) { event.preventDefault(); target.click(); }
  });
})();
