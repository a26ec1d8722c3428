// Play against the agent. Nothing about a picture but its pixels is asked for before the guess is stored.
"use strict";
(() => {
  const { el, blocks, served, command, onLake, km, number, library, values } = geofix;
  const LICENCES = ["CC BY 4.0", "CC BY-SA 4.0", "CC0 1.0"];
  const kept = (name) => { try { return localStorage.getItem(`geofix-play-${name}`) || ""; } catch { return ""; } };
  const keep = (name, value) => { try { if (value) localStorage.setItem(`geofix-play-${name}`, value); else localStorage.removeItem(`geofix-play-${name}`); } catch { /* asked again next time */ } };
  const waiting = () => `guess-${values.get("site").snapshot}`;

  blocks.play = () => {
    if (!served()) return el("section", { class: "play" }, el("p", { class: "words" }, "The game needs a server, so that the truth stays hidden until you have guessed. Start it with"), command(onLake("review --serve")));
    const place = el("div", {}), said = el("p", { class: "muted", role: "status", "aria-live": "polite" });
    const show = (...nodes) => place.replaceChildren(...nodes.filter(Boolean));
    const fail = (text) => { said.textContent = text; };

    async function next() {
      const player = kept("player");
      if (!player || !kept("agreed")) { show(welcome()); return; }
      const unsent = kept(waiting());
      if (unsent) { await send(JSON.parse(unsent)); return; } // a guess that an earlier visit could not send
      let answer;
      try { answer = await fetch(`play/next?player=${encodeURIComponent(player)}`); } catch { /* below */ }
      if (!answer?.ok) { fail(answer ? await answer.text() : "geofix does not answer; load the page again."); return; }
      const round = await answer.json();
      fail("");
      if (round.round) show(guessing(round, player));
      else show(el("p", { class: "words" }, round.done ? `You have played all ${number(round.done)} pictures.` : "There is nothing to play yet: no agent has answered a picture of this snapshot."), round.done ? null : command(onLake("evaluate")));
    }

    /** Who plays, and under which licence the guesses are given. */
    function welcome() {
      const name = el("input", { type: "text", id: "play-name", maxlength: 80, required: true, autocomplete: "nickname" }); name.value = kept("player");
      const licence = el("select", { id: "play-licence" }, LICENCES.map((one) => el("option", { value: one }, one)));
      const agree = el("input", { type: "checkbox", id: "play-agree", required: true });
      return el("form", { class: "marks", onsubmit: (event) => {
        event.preventDefault();
        if (!name.value.trim() || !agree.checked) { fail("A name and your agreement are needed."); return; }
        keep("player", name.value.trim()); keep("licence", licence.value); keep("agreed", "yes");
        next();
      } },
      el("p", {}, "You see a picture, put a pin where you think it was taken, and write down why. Then you see the truth and the agent's way."),
      el("p", {}, el("label", { for: "play-name" }, "Your name, as it is stored "), name),
      el("p", {}, el("label", { for: "play-licence" }, "I give my guesses and notes under "), licence),
      el("p", {}, agree, el("label", { for: "play-agree" }, " I agree that they are stored with my name under this licence. On training pictures the notes may become lessons for agents.")),
      el("button", { class: "primary" }, "Play"));
    }

    function guessing(round, player) {
      const source = `play/picture/${round.round}?player=${encodeURIComponent(player)}`;
      const picture = el("img", { src: source, alt: "Where was this taken?", style: round.width ? `aspect-ratio:${round.width}/${round.height}` : null });
      const look = round.kind === "panorama" ? el("button", { type: "button", onclick: () => around(source, look) }, "Look around") : null;
      const map = el("div", { class: "map guess", role: "application", tabindex: 0, "aria-label": "World map. Arrow keys move it, plus and minus zoom, Enter puts the pin in its middle." });
      const lat = el("input", { type: "number", step: "any", min: -90, max: 90, required: true, "aria-label": "latitude", class: "degrees" });
      const lon = el("input", { type: "number", step: "any", min: -180, max: 180, required: true, "aria-label": "longitude", class: "degrees" });
      const why = el("textarea", { rows: 4, minlength: 3, maxlength: 4000, required: true, id: "play-why", placeholder: "What tells the country? What the region? What the place itself?" });
      const button = el("button", { class: "primary" }, "Guess");
      let pin = null;
      const set = (to) => { lat.value = to.lat.toFixed(4); lon.value = (((to.lng + 540) % 360) - 180).toFixed(4); moved(); };
      const moved = () => { if (lat.value !== "" && lon.value !== "" && map.pin) map.pin(Number(lat.value), Number(lon.value)); };
      for (const one of [lat, lon]) one.addEventListener("change", moved);
      (async () => {
        const world = (await geofix.world(map, { keyboardPanDelta: 60 })).setView([20, 8], map.clientWidth < 600 ? 1 : 2);
        map.pin = (y, x) => { pin ||= L.circleMarker([y, x], { radius: 8, weight: 2, color: "#fff", fillColor: "#c2410c", fillOpacity: 1 }).addTo(world); pin.setLatLng([y, x]); };
        world.on("click", (event) => set(event.latlng));
        map.addEventListener("keydown", (event) => { if (event.key === "Enter") { event.preventDefault(); world.stop(); set(world.getCenter()); } });
        new ResizeObserver(() => world.invalidateSize()).observe(map);
        moved();
      })();
      return el("form", { class: "playing", onsubmit: (event) => {
        event.preventDefault();
        if (lat.value === "" || lon.value === "") { fail("Put a pin on the map first."); map.focus(); return; }
        if (why.value.trim().length < 3) { fail("Write down why, in a few words."); why.focus(); return; }
        button.disabled = true;
        send({ round: round.round, player, lat: Number(lat.value), lon: Number(lon.value), why: why.value.trim(), licence: kept("licence") || LICENCES[0], agreed: true, guessed_at: new Date().toISOString() });
      } },
      el("p", { class: "muted" }, `${number(round.done)} played, ${number(round.left)} to go. `, el("b", {}, player), " ", el("button", { type: "button", class: "copy", onclick: () => { keep("agreed", ""); next(); } }, "not you?")),
      el("div", { class: "columns" }, el("div", {}, el("div", { class: "show" }, picture), look),
        el("div", {}, el("p", { class: "muted" }, "Click the map; or move it with the arrow keys, zoom with + and −, and press Enter."), el("div", { class: "aim" }, map), el("p", { class: "row" }, el("label", {}, "lat ", lat), el("label", {}, "lon ", lon)),
          el("p", {}, el("label", { for: "play-why" }, "Why there?")), el("div", { class: "notes" }, why), el("p", {}, button))));
    }

    async function around(panorama, button) {
      const view = el("div", { class: "panorama" });
      button.replaceWith(view);
      await library("pannellum", "pannellum.js", "pannellum.css");
      pannellum.viewer(view, { type: "equirectangular", panorama, autoLoad: true, hfov: 100, keyboardZoom: true });
    }

    /** Kept in the browser until the server says that it is stored; sent again while it does not answer. */
    async function send(guess) {
      keep(waiting(), JSON.stringify(guess));
      for (;;) {
        let answer;
        try { answer = await fetch("play/guess", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(guess) }); } catch { /* no server */ }
        if (answer && answer.status < 500) {
          keep(waiting(), "");
          if (!answer.ok) { fail(`Not taken: ${await answer.text()}`); if (!place.firstChild) show(el("button", { type: "button", onclick: next }, "Next picture")); for (const one of place.querySelectorAll("button")) one.disabled = false; return; }
          const told = await answer.json();
          fail("");
          show(reveal(told));
          return;
        }
        fail("The guess waits: geofix does not answer. It is kept here and sent again.");
        await new Promise((resolve) => { setTimeout(resolve, 2000); });
      }
    }

    function reveal(told) {
      const points = [[...told.truth, "truth", told.title], [...told.guess, "guess", `you, ${km(told.error_km)} off`]];
      if (told.agent.guess) points.push([...told.agent.guess, "agent", `${told.policy}, ${km(told.agent_km)} off`]);
      const won = told.agent_km === null || told.error_km < told.agent_km;
      const button = el("button", { type: "button", class: "primary", onclick: next }, "Next picture (N)");
      geofix.keys = { n: next };
      setTimeout(() => button.focus(), 0);
      return el("article", { class: "picture revealed" }, el("h2", {}, told.title || "Without an address"),
        el("div", { class: "figures" }, [[km(told.error_km), `you: ${number(told.score)} points`, won], [told.agent.guess ? km(told.agent_km) : "no point", `${told.policy}: ${number(told.agent_score)} points`, !won]].map(([value, label, good]) => el("div", { class: `figure ${good ? "good" : "plain"}` }, el("b", {}, value), el("span", {}, label)))),
        el("p", {}, won ? "You were nearer." : "The agent was nearer.", told.split === "train" ? " A training picture: your notes may become a lesson." : " A benchmark picture: your guess counts for the human baseline."), el("p", {}, button),
        el("div", { class: "columns" }, el("div", {}, el("div", { class: "show" }, geofix.image(told.image, told.title, { loading: "eager" })), el("p", { class: "credit" }, told.credit), geofix.smallMap(points)),
          el("div", {}, el("h2", {}, "The agent's way"), el("ol", { class: "steps" }, told.agent.steps.map(geofix.step)))));
    }

    next();
    return el("section", { class: "play" }, said, place);
  };
})();
