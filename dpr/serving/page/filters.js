// The fields by which a search is limited: /info names them, and the values of those that have few.

const MOST_BOXES = 12;
const PARSERS = {
  int: (text) => (Number.isSafeInteger(Number(text)) ? Number(text) : text),
  float: (text) => (Number.isFinite(Number(text)) ? Number(text) : text),
  bool: (text) => ({ true: true, false: false })[text] ?? text,
  text: (text) => text,
}; // what is none of its kind is sent as it is, and the service says what it expected

let fields = []; // { name, read() -> values, write(values) }

function labelled(text, control) {
  const label = document.createElement("label");
  label.append(text, control);
  return label;
}

function boxes(name, values) {
  const group = document.createElement("fieldset");
  group.append(Object.assign(document.createElement("legend"), { textContent: name }));
  const made = values.map((value) => {
    const box = Object.assign(document.createElement("input"), { type: "checkbox" });
    const label = labelled(box, String(value));
    label.dir = "auto";
    group.append(label);
    return { box, value };
  });
  return {
    name,
    control: group,
    read: () => made.filter(({ box }) => box.checked).map(({ value }) => value),
    write: (wanted) => made.forEach(({ box, value }) => (box.checked = wanted.includes(value))),
  };
}

function line(name, kind) {
  const input = Object.assign(document.createElement("input"), { type: "text", autocomplete: "off", spellcheck: false, dir: "auto" });
  const read = () => (input.value.trim() ? [PARSERS[kind](kind === "text" ? input.value : input.value.trim())] : []);
  return { name, control: labelled(name, input), read, write: (wanted) => (input.value = wanted.length ? String(wanted[0]) : "") };
}

// Fills the panel; whether there is anything to filter by.
export function build(panel, kinds, indexes) {
  fields = Object.entries(kinds ?? {}).map(([name, kind]) => {
    const lists = indexes.map((index) => Object.entries(index.choices ?? {}).find(([one]) => one === name)?.[1]);
    const values = lists.every(Array.isArray) ? [...new Set(lists.flat())] : [];
    return values.length && values.length <= MOST_BOXES ? boxes(name, values) : line(name, kind);
  });
  panel.replaceChildren(...fields.map(({ control }) => control));
  return fields.length > 0;
}

// What is chosen, as /search takes it; undefined where nothing is.
export function chosen() {
  const found = fields.map(({ name, read }) => [name, read()]).filter(([, values]) => values.length);
  return found.length ? { metadata: Object.fromEntries(found) } : undefined;
}

// Puts what ``chosen`` gave into the panel again; what is of another shape is left out.
export function choose(filter) {
  const holder = Object(filter?.metadata);
  for (const { name, write } of fields) {
    const values = Object.hasOwn(holder, name) ? [holder[name]].flat() : [];
    write(values.filter((value) => ["string", "number", "boolean"].includes(typeof value)));
  }
}
