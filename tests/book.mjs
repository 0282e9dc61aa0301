// Checks each page of the book with other programs: its diagrams with Mermaid's parser, its tables and blocks with a second renderer, and
// the book's own search, which must find it. `node book.mjs TOOLS SOURCE BOOK`
import { readFileSync, readdirSync } from "node:fs";
import { createRequire } from "node:module";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { runInNewContext } from "node:vm";

const [tools, source, book] = process.argv.slice(2).map((folder) => resolve(folder));
const require = createRequire(join(tools, "tools.js"));
const { JSDOM } = require("jsdom");
globalThis.window = new JSDOM("").window;
globalThis.document = window.document;
const { default: mermaid } = await import(pathToFileURL(require.resolve("mermaid")));
const markdown = require("markdown-it")({ html: true });

const problems = [];
const count = (text, pattern) => (text.match(pattern) ?? []).length;

// What the book searches with, in a context of its own.
const search = {};
search.window = search;
runInNewContext("window.search = {};", search);
for (const name of readdirSync(book).filter((name) => /^(elasticlunr|searchindex)-/.test(name))) {
  runInNewContext(readFileSync(join(book, name), "utf8"), search);
}
const { doc_urls: urls, index } = search.window.search;
const searched = search.elasticlunr.Index.load(index);
const finds = (word, page) =>
  searched.search(word, { fields: { body: {} } }).some(({ ref }) => urls[ref].split("#")[0] === page);

const summary = readFileSync(join(source, "src/SUMMARY.md"), "utf8");
const pages = [...summary.matchAll(/\]\((.*)\)$/gm)].map((match) => match[1]);
let diagrams = 0;
let tables = 0;
for (const page of pages) {
  const text = readFileSync(join(source, "src", page), "utf8");
  const lines = text.split("\n");
  const tokens = markdown.parse(text, {});
  const blocks = tokens.filter(({ type }) => type === "fence");

  for (const { content, map } of blocks.filter(({ info }) => info === "mermaid")) {
    diagrams += 1;
    try {
      await mermaid.parse(content);
    } catch (error) {
      problems.push(`${page}:${map[0] + 1}: a diagram that Mermaid cannot read: ${error.message}`);
    }
  }

  const outside = text.replace(/^ *```[^]*?^ *```$/gm, "");
  const inSource = { tables: count(outside, /^ *\|(?: *:?-+:? *\|)+$/gm), blocks: count(text, /^ *```./gm) };
  tables += inSource.tables;
  const html = readFileSync(join(book, page.replace(/README\.md$/, "index.md").replace(/\.md$/, ".html")), "utf8");
  for (const [renderer, rendered] of [["markdown-it", markdown.render(text)], ["mdBook", html]]) {
    const inRendered = { tables: count(rendered, /<table/g), blocks: count(rendered, /<code class="language-/g) };
    for (const kind of ["tables", "blocks"]) {
      if (inRendered[kind] !== inSource[kind]) {
        problems.push(`${page}: has ${inSource[kind]} ${kind}, and ${inRendered[kind]} as ${renderer} renders it`);
      }
    }
  }
  // A renderer drops what is in a row beyond the columns of the table's head.
  for (const { map } of tokens.filter(({ type }) => type === "table_open")) {
    const bars = (line) => count(lines[line], /(?<!\\)\|/g);
    for (let line = map[0]; line < map[1]; line += 1) {
      if (bars(line) !== bars(map[0])) problems.push(`${page}:${line + 1}: a row with more or fewer cells than its table`);
    }
  }

  // The longest word of the page's text.
  const prose = tokens.filter(({ type }) => type === "inline").flatMap(({ children }) => children);
  const words = prose.filter(({ type }) => type === "text").flatMap(({ content }) => content.match(/(?<!\S)[a-z]+(?!\S)/g) ?? []);
  const word = words.reduce((longest, word) => (word.length > longest.length ? word : longest), "");
  const url = page.replace(/README\.md$/, "index.md").replace(/\.md$/, ".html");
  if (!finds(word, url)) problems.push(`${page}: the book's search does not find it by its word ${word}`);
}
if (finds("zzyzxzzyzx", "index.html")) problems.push("the book's search finds a word that is in no page");

for (const problem of problems) console.error(`tests/book: ${problem}`);
console.log(`${pages.length} pages, ${tables} tables, ${diagrams} diagrams`);
process.exit(problems.length > 0 ? 1 : 0);
