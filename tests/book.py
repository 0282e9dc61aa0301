"""What tests/book does with files.

book.py source SOURCE       makes the source of the book from the pages
book.py check BOOK          checks links and text of the book, and that nothing in it is loaded from a host
book.py draw SOURCE BOOK    lets a browser that has no network draw every diagram
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# The attributes that a browser loads, unlike a link that a reader follows.
LOADED = {"src", "srcset", "poster", "data", "background", "xlink:href"}
# The light and the dark theme, with the number by which a browser prefers each.
THEMES = {"light": 1, "navy": 0}
# A host in a style sheet or a script where it is loaded.
HOST_IN_STYLE = re.compile(r"""(?:url\(|@import)\s*["']?(?:https?:)?//[\w.-]+""")
HOST_IN_SCRIPT = re.compile(
    r"""(?:\bfetch\(|\bimport\(?|\bimportScripts\(|\bfrom|\.open\(["']\w+["'],|\.(?:src|href)\s*=|\bnew \w+\()"""
    r"""\s*["'`](?:(?:https?|wss?):)?//[\w.-]+"""
)


def fail(problems):
    """Ends with the problems, if there are any."""
    lines = [f"tests/book: {problem}" for problem in dict.fromkeys(problems)]
    if lines:
        sys.exit("\n".join(lines))


def listed():
    """Returns the pages in the order of the book, which is that of the README's last table."""
    table = Path("README.md").read_text().split("\n## All pages\n")[1]
    pages = re.findall(r"^\| \[[^]]+\]\((docs/[^)]+\.md)\) \|", table, re.M)
    fail(f"{page} is more than once in the README's table `All pages`" for page in set(pages) if pages.count(page) > 1)
    found = {str(path) for path in Path("docs").rglob("*.md")}
    fail(f"{page} is only in one of docs/ and the README's table `All pages`" for page in sorted(found ^ set(pages)))
    return ["README.md", *pages, "CHANGELOG.md"]


def make_source(source):
    """Copies the pages and the files that they link to, so that links need no change, and writes the list of chapters."""
    chapters = ["# Summary\n"]
    folder = None
    for page in listed():
        path = Path(page)
        text = path.read_text()
        files = [page]
        for link in re.findall(r"\]\(([^)#:\s]+)\)", text):
            file = os.path.normpath(path.parent / link)
            if not file.startswith("..") and not file.endswith(".md") and os.path.isfile(file):
                files.append(file)
        for file in files:
            (source / "src" / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, source / "src" / file)
        # The pages of a folder stand together, below its index.
        if folder not in (None, path.parent):
            chapters.append("\n---\n")
        folder = path.parent
        is_below = path.name != "index.md" and (folder / "index.md").exists()
        heading = text.split("\n", 1)[0].removeprefix("# ")
        chapters.append(f"{'  ' * is_below}- [{heading}]({page})")
    (source / "src" / "SUMMARY.md").write_text("\n".join(chapters) + "\n")


class Html(HTMLParser):
    """A page of HTML: its anchors, its links, what it loads, its text outside code, its styles and its scripts."""

    def __init__(self, text):
        super().__init__()
        self.anchors, self.links, self.loaded = set(), [], []
        self.text, self.styles, self.scripts = [], [], []
        self.open = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        if tag in ("code", "pre", "style", "script"):
            self.open.append(tag)
        for name, value in attributes:
            value = value or ""
            if name == "id" or (name == "name" and tag == "a"):
                self.anchors.add(value)
            elif name in LOADED:
                self.loaded += [part.split()[0] for part in value.split(",")] if name == "srcset" else [value]
            elif name == "href":
                (self.loaded if tag in ("link", "image", "use") else self.links).append(value)
            elif name == "style":
                self.styles.append(value)
            elif name.startswith("on"):
                self.scripts.append(value)

    def handle_endtag(self, tag):
        if tag in self.open:
            while self.open.pop() != tag:
                pass

    def handle_data(self, data):
        kind = self.open[-1] if self.open else None
        {None: self.text, "style": self.styles, "script": self.scripts}.get(kind, []).append(data)


def check(book):
    """Checks every link, what is loaded, and the text."""
    pages = {path: Html(path.read_text()) for path in sorted(book.rglob("*.html"))}
    problems = []
    for path, page in pages.items():
        name = path.relative_to(book)
        for link in page.links + page.loaded:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                if link in page.loaded and parts.scheme != "data":
                    problems.append(f"{name} loads {link}")
                continue
            leads_to = Path(os.path.normpath(path.parent / unquote(parts.path))) if parts.path else path
            if not leads_to.is_file():
                problems.append(f"{name}: {link} leads to no file of the book")
            elif parts.fragment and leads_to in pages and unquote(parts.fragment) not in pages[leads_to].anchors:
                problems.append(f"{name}: {link} leads to no heading")
        problems += [f"{name} loads {host}" for style in page.styles for host in HOST_IN_STYLE.findall(style)]
        problems += [f"{name} loads {host}" for script in page.scripts for host in HOST_IN_SCRIPT.findall(script)]
        text = "".join(page.text)
        problems += [f"{name} shows {mark} as text" for mark in ("<!--", "-->", "```") if mark in text]
        problems += [f"{name} shows {line} as text" for line in text.splitlines() if re.fullmatch(r"\s*(console|\|[-| :]+\|)\s*", line)]
    for path in book.rglob("*.css"):
        problems += [f"{path.relative_to(book)} loads {host}" for host in HOST_IN_STYLE.findall(path.read_text())]
    for path in book.rglob("*.js"):
        problems += [f"{path.relative_to(book)} loads {host}" for host in HOST_IN_SCRIPT.findall(path.read_text())]
    fail(problems)
    print(f"{len(pages)} files of HTML, {sum(len(page.links) for page in pages.values())} links")


def draw(source, book):
    """Opens the pages with diagrams in a browser without a network: it draws them all, in both themes, and asks for no host."""
    problems = []
    pages = [path for path in sorted((source / "src").rglob("*.md")) if "\n```mermaid\n" in path.read_text()]
    for path, theme in [(path, theme) for path in pages for theme in THEMES]:
        file = path.relative_to(source / "src").with_suffix(".html")
        file = file.with_name("index.html") if path.name == "README.md" else file
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder) / "log.json"
            browser = subprocess.run(
                ["unshare", "--net", *([] if os.getuid() == 0 else ["--map-root-user"])]
                + ["chromium-headless-shell", "--no-sandbox", f"--user-data-dir={folder}", f"--log-net-log={log}"]
                + [f"--blink-settings=preferredColorScheme={THEMES[theme]}", "--virtual-time-budget=20000"]
                + ["--enable-logging=stderr", "--dump-dom", (book / file).as_uri()],
                capture_output=True, text=True, timeout=120, check=True,
            )
            asked = set(re.findall(r'"(?:url|host)":\s*"([^"]*)"', log.read_text()))
        page = browser.stdout
        drawn = page.count('class="mermaid" data-processed="true"') - page.count('aria-roledescription="error"')
        wanted = path.read_text().count("\n```mermaid\n")
        if drawn != wanted:
            problems.append(f"{file}: {drawn} of {wanted} diagrams are drawn in the {theme} theme")
        if not re.search(rf'<html [^>]*class="[^"]*\b{theme}\b', page):
            problems.append(f"{file}: is not in the {theme} theme")
        problems += [f"{file} asks for {host}" for host in sorted(asked)]
        problems += [f"{file}: {line}" for line in browser.stderr.splitlines() if ":CONSOLE" in line and "Uncaught" in line]
    fail(problems)
    print(f"{len(pages)} pages with diagrams are drawn")


def main():
    task, *folders = sys.argv[1:]
    folders = [Path(folder).resolve() for folder in folders]
    {"source": make_source, "check": check, "draw": draw}[task](*folders)


main()
