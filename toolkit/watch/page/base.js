"use strict";
// What the page is made of: the data, elements, numbers. Values only ever become text, never markup.
const DATA = JSON.parse(document.getElementById("data").textContent);

/** Make an element: el("p.soft", {title: "…"}, children…); children are nodes or text. */
function el(name, attributes = {}, ...children) {
  const [tag, ...classes] = name.split(".");
  const node = document.createElement(tag);
  if (classes.length) node.className = classes.join(" ");
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (value === true) node.setAttribute(key, "");
    else if (value !== false && value != null) node.setAttribute(key, value);
  }
  node.append(...children.flat().filter((child) => child != null));
  return node;
}

function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

/** Four decimals at most, with a real minus. */
function num(value) {
  if (value == null) return "–";
  const rounded = Number(value.toFixed(4));
  return (Object.is(rounded, -0) ? "0" : String(rounded)).replace("-", "−");
}

function bytes(count) {
  if (count < 1024) return `${count} B`;
  const unit = Math.min(4, Math.floor(Math.log2(count) / 10));
  return `${Number((count / 1024 ** unit).toPrecision(4))} ${["", "KiB", "MiB", "GiB", "TiB"][unit]}`;
}

const letter = (part) => el(`span.part.${part}`, { "aria-hidden": "true" }, part);
const sum = (values) => values.reduce((total, value) => total + value, 0);

/** A row of choices, of which one is taken; `items` are [value, label, enabled]. */
function choices(title, name, items, taken, onchange) {
  return el("fieldset", {}, el("legend", {}, title), items.map(([value, label, enabled = true]) =>
    el("label.choice", {},
      el("input", { type: "radio", name, value, checked: value === taken, disabled: !enabled, onchange: () => onchange(value) }),
      el("span", {}, label))));
}

// After a choice by mouse the arrow keys are the page's again; by keyboard they stay the choice's.
let byPointer = false;
document.addEventListener("pointerdown", () => { byPointer = true; }, true);
document.addEventListener("keydown", () => { byPointer = false; }, true);

/** Replace what is in a node, and keep the keyboard's focus where it was. */
function fill(node, ...children) {
  const focused = document.activeElement;
  const key = focused && node.contains(focused) ? [focused.name, focused.value, focused.dataset.key] : null;
  node.replaceChildren(...children.flat().filter((child) => child != null));
  if (!key || byPointer) return;
  const again = [...node.querySelectorAll("input, button, select")].find((other) =>
    key[2] ? other.dataset.key === key[2] : key[0] && other.name === key[0] && other.value === key[1]);
  if (again) again.focus({ preventScroll: true });
}
