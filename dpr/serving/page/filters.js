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

function line(name, kind, values, number) {
  const input = Object.assign(document.createElement("input"), { type: "text", autocomplete: "off", spellcheck: false, dir: "auto" });
  const label = labelled(name, input);
  if (values.length) {
    const list = Object.assign(document.createElement("datalist"), { id: `values-${number}` });
    list.append(...values.map((value) => Object.assign(document.createElement("option"), { value: String(value) })));
    input.setAttribute("list", list.id);
    label.append(list);
  }
  const read = () => (input.value.trim() ? [PARSERS[kind](kind === "text" ? input.value : input.value.trim())] : []);
  return { name, control: label, read, write: (wanted) => (input.value = wanted.length ? String(wanted[0]) : "") };
}

function ids() {
  const area = Object.assign(document.createElement("textarea"), { rows: 2, spellcheck: false, dir: "auto" });
  const read = () => area.value.split(/\r?\n/).filter(Boolean);
  return { name: null, control: labelled("ids, one a line", area), read, write: (wanted) => (area.value = wanted.join("\n")) };
}

// Fills the panel; whether there is anything to filter by.
export function build(panel, kinds, indexes) {
  fields = Object.entries(kinds ?? {}).map(([name, kind], number) => {
    const lists = indexes.map((index) => Object.entries(index.choices ?? {}).find(([one]) => one === name)?.[1]);
    const values = lists.every(Array.isArray) ? [...new Set(lists.flat())] : [];
    return values.length && values.length <= MOST_BOXES ? boxes(name, values) : line(name, kind, values, number);
  });
  const isAny = fields.length > 0;
  if (isAny) fields.push(ids());
  panel.replaceChildren(...fields.map(({ control }) => control));
  return isAny;
}

// What is chosen, as /search takes it; undefined where nothing is.
export function chosen() {
  const found = fields.map(({ name, read }) => [name, read()]).filter(([, values]) => values.length);
  const metadata = found.filter(([name]) => name !== null);
  const wanted = found.filter(([name]) => name === null).map(([, values]) => ({ ids: values }));
  if (metadata.length) wanted.push({ metadata: Object.fromEntries(metadata) });
  return wanted.length ? Object.assign({}, ...wanted) : undefined;
}

// Puts what ``chosen`` gave into the panel again; what is of another shape is left out.
export function choose(filter) {
  for (const { name, write } of fields) {
    const holder = Object(name === null ? filter : filter?.metadata);
    const key = name ?? "ids";
    const values = Object.hasOwn(holder, key) ? [holder[key]].flat() : [];
    write(values.filter((value) => ["string", "number", "boolean"].includes(typeof value)));
  }
}
