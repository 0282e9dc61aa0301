// Draws the diagrams of a page of the book, and again when the reader changes between a light and a dark theme.
(() => {
  const diagrams = [...document.querySelectorAll("code.language-mermaid")].map((code) => {
    const diagram = document.createElement("div");
    diagram.className = "mermaid";
    code.closest("pre").replaceWith(diagram);
    return { diagram, text: code.textContent };
  });
  if (diagrams.length === 0) return;

  const root = document.documentElement;
  let drawn;
  const draw = () => {
    const isDark = ["coal", "navy", "ayu"].some((theme) => root.classList.contains(theme));
    const theme = isDark ? "dark" : "default";
    if (theme === drawn) return;
    drawn = theme;
    mermaid.initialize({ startOnLoad: false, theme });
    for (const { diagram, text } of diagrams) {
      diagram.textContent = text;
      diagram.removeAttribute("data-processed");
    }
    mermaid.run();
  };
  draw();
  new MutationObserver(draw).observe(root, { attributeFilter: ["class"] });
})();
