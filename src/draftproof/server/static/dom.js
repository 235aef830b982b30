// Elements from data. Text only ever becomes text: nothing here parses markup.

/** Return the element with an id. */
export function byId(id) {
  return document.getElementById(id);
}

/**
 * Make an element.
 *
 * `options` may hold `class`, `text`, `at` (a share from 0 to 1, for bars), and attributes.
 */
export function make(tag, options = {}, ...children) {
  const { class: classes, text, at, ...attributes } = options;
  const element = document.createElement(tag);
  if (classes) element.className = classes;
  if (text !== undefined) element.textContent = text;
  if (at !== undefined) element.style.setProperty("--at", `${(100 * at).toFixed(2)}%`);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** Replace what a description list holds by pairs of a name and a text. */
export function fillFacts(list, pairs) {
  list.replaceChildren(
    ...pairs.flatMap(([name, text]) => [make("dt", { text: name }), make("dd", { text })]),
  );
}
