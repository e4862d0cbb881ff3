// Draws lists of hits. Texts become text nodes, never markup.

function element(name, className, ...children) {
  const made = document.createElement(name);
  if (className) made.className = className;
  made.append(...children);
  return made;
}

// Pieces of a text, every second one a word of the question.
function marked(pieces) {
  return pieces.map((piece, place) => (place % 2 ? element("mark", "", piece) : piece));
}

function number(value) {
  return Number.isFinite(value) ? String(Number(value.toPrecision(4))) : "-";
}

// Difference of ranks: the rank in the other list minus the rank here.
export function shift(rank, other, name) {
  if (other === undefined) return element("span", "shift only", "only here");
  const moved = other - rank;
  const text = moved > 0 ? `\u25b2 ${moved}` : moved < 0 ? `\u25bc ${-moved}` : "same rank";
  const made = element("span", `shift ${moved > 0 ? "up" : moved < 0 ? "down" : "same"}`, text);
  made.title = `rank ${other} in ${name}`;
  if (moved) made.setAttribute("aria-label", `${Math.abs(moved)} ${moved > 0 ? "higher" : "lower"} than in ${name}`), (made.role = "img");
  return made;
}

const SIDES = { dense: "dense", bm25: "BM25" };

function facts(hit) {
  const made = [`score ${number(hit.score)}`];
  const sides = Object.entries(hit.sides ?? {});
  if (sides.length > 1) {
    made.push(...sides.map(([side, place]) => `${SIDES[side] ?? side} ${place ? `#${place.rank} (${number(place.score)})` : "none"}`));
  }
  const shown = [...made.map((text) => element("span", "", text)), origin(hit)];
  if (hit.words) shown.push(element("span", "words", hit.words.length ? `in common: ${hit.words.join(", ")}` : "no word in common"));
  return shown;
}

// Source of a passage: a link if the service gives a web address, else file and line, or the corpus; and its id.
function origin(hit) {
  const { place, heading, url } = hit.origin ?? {};
  const shown = [place || hit.file, (hit.title ?? "").endsWith(heading ?? "") ? "" : heading, hit.id].filter(Boolean);
  const made = element("span", "origin", ...shown.map((text, rank) => element("span", "", rank ? ` \u00b7 ${text}` : text)));
  if (url && URL.canParse(url) && ["http:", "https:"].includes(new URL(url).protocol)) {
    const link = element("a", "", new URL(url).hostname);
    Object.assign(link, { href: url, target: "_blank", rel: "noopener noreferrer nofollow", title: url });
    made.append(" \u00b7 ", link);
  }
  return made;
}

function body(hit) {
  const excerpt = element("p", "text", ...marked(hit.excerpt ?? [hit.text ?? ""]));
  excerpt.dir = "auto";
  if (hit.pieces === undefined && (hit.text ?? "") === excerpt.textContent) return [excerpt];
  const whole = element("p", "text whole", ...marked(hit.pieces ?? [hit.text ?? ""]));
  whole.dir = "auto";
  const more = element("summary", "more", "whole passage");
  more.setAttribute("aria-label", `whole passage: ${hit.title || hit.id}`);
  return [excerpt, element("details", "", more, whole)];
}

// Fills a list; `other`: rank by id in the other column, null where there is none, `name`: of that column.
export function draw(list, hits, isUnanswered, other, name) {
  const items = hits.map((hit, place) => {
    const title = element("h3", "title", ...marked(hit.title_pieces ?? [hit.title || hit.id]));
    title.dir = "auto";
    const head = element("div", "head", element("span", "rank", String(place + 1)), title);
    if (other) head.append(shift(place + 1, other.get(hit.id), name));
    const item = element("li", "hit", head, ...body(hit), element("div", "facts", ...facts(hit)));
    item.dataset.id = hit.id;
    return item;
  });
  if (!items.length) items.push(element("li", "none", "Nothing found."));
  else if (isUnanswered) items.unshift(element("li", "none", "Nothing here seems to answer this; nearest passages:"));
  list.replaceChildren(...items);
}
