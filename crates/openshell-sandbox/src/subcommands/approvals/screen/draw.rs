//! Draws the screen.

use std::time::Instant;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::Paragraph;
use serde_json::Value;

use super::model::{Granted, Opened, Row, Screen, View};
use super::text::{cut, wrapped};

/// What stands below each question: what no line can prevent.
const WARNING: &str = "A line that only reads lets data out too, in a path or a query.";

/// The keys, for the page of help.
const HELP: &str = "\
up, down, j, k    select a question, or move in an open one
Enter             open the question in full
a                 permit the oldest request once (then y, if a mark has a !)
r, then y         permit the line until the sandbox ends
s, then y         the same, and write it to the file that is shown
d                 deny what waits; of a proposal you may type why
x                 deny it, and do not ask again in this run
w, n              wider or narrower line
g                 what was granted, and programs that are not asked for
u                 (there) take one back
q, Esc            back; in the list: leave, and everything stays held

A key permits only what is open, and whose end has been on the screen for half a
second. Pasted text and keys that repeat by themselves are not taken.";

/// Draws `screen` as it is at the moment `now`.
pub(super) fn draw(screen: &mut Screen, frame: &mut Frame<'_>, now: Instant, has_colours: bool) {
    let area = frame.area();
    let [top, middle, bottom] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Min(1),
        Constraint::Length(2),
    ])
    .areas(area);
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let of = screen.name.as_deref().unwrap_or("all sandboxes");
    let held: usize = screen.rows.iter().map(held).sum();
    let title = format!("openshell-sandbox approvals: {of}, {held} waiting");
    line(frame, top, &title, bold);
    let width = usize::from(middle.width);
    let height = usize::from(middle.height);
    let keys = match screen.view.clone() {
        View::List(selected) => {
            let index = selected
                .as_ref()
                .and_then(|at| screen.rows.iter().position(|row| row_is(row, at)));
            let rows: Vec<_> = screen.rows.iter().map(|row| row_text(row, now)).collect();
            if rows.is_empty() {
                line(frame, middle, "Nothing waits.", Style::new());
            }
            list(frame, middle, &rows, index, |at| {
                style(&screen.rows[at], has_colours)
            });
            "arrows: select   Enter: open   g: granted   ?: help   q: leave"
        }
        View::Question(opened) => question(screen, frame, middle, opened, now, has_colours),
        View::Grants(selected) => {
            let rows: Vec<_> = screen.granted.iter().map(grant_text).collect();
            if rows.is_empty() {
                line(
                    frame,
                    middle,
                    "Nothing was granted for the run.",
                    Style::new(),
                );
            }
            let chosen = rows.get(selected).cloned().unwrap_or_default();
            let full = wrapped(&chosen, width);
            let below = (full.len() + 1).min(height / 2);
            let [rows_area, full_area] = Layout::vertical([
                Constraint::Min(1),
                Constraint::Length(u16::try_from(below).unwrap_or(u16::MAX)),
            ])
            .areas(middle);
            list(frame, rows_area, &rows, Some(selected), |_| Style::new());
            text(frame, full_area, &full, 0, Style::new());
            "arrows: select   u: take back   q: back"
        }
        View::Help => {
            text(frame, middle, &wrapped(HELP, width), 0, Style::new());
            "any key: back"
        }
    };
    let [message, below] =
        Layout::vertical([Constraint::Length(1), Constraint::Length(1)]).areas(bottom);
    let said = cut(&screen.message, usize::from(message.width));
    line(frame, message, &said, bold);
    line(
        frame,
        below,
        keys,
        Style::new().add_modifier(Modifier::REVERSED),
    );
}

fn held(row: &Row) -> usize {
    if row.is_gone { 0 } else { row.question.held }
}

fn row_is(row: &Row, at: &super::model::Place) -> bool {
    row.sandbox == at.sandbox && row.question.id == at.id
}

/// Returns the style of a question: one with a dangerous mark stands out.
fn style(row: &Row, has_colours: bool) -> Style {
    if row.is_gone {
        return Style::new().add_modifier(Modifier::DIM);
    }
    let plain = Style::new();
    match (row.is_dangerous(0), has_colours) {
        (true, true) => plain.fg(Color::Red),
        (true, false) => plain.add_modifier(Modifier::BOLD),
        (false, _) => plain,
    }
}

/// Returns a question as one line of the list. The whole question is shown when it is open.
fn row_text(row: &Row, now: Instant) -> String {
    let facts: Value = serde_json::from_str(&row.question.facts).unwrap_or_default();
    let word = |key: &str| facts[key].as_str().unwrap_or_default().to_owned();
    let state = match (row.is_gone, row.question.state.as_str()) {
        (true, _) => "gone".to_owned(),
        (false, "held") => format!("{}s", row.seconds_left(now)),
        (false, state) => state.to_owned(),
    };
    let program = word("program");
    let program = program.rsplit('/').next().unwrap_or_default();
    let mark = if row.is_dangerous(0) { "!" } else { " " };
    let leads = match facts["addresses"].as_array() {
        Some(addresses) => {
            let addresses: Vec<_> = addresses.iter().filter_map(Value::as_str).collect();
            format!("leads to {}", addresses.join(", "))
        }
        None => String::new(),
    };
    let what = [
        leads,
        word("method"),
        word("path"),
        word("message"),
        word("tool"),
    ];
    let what = what.join(" ");
    let count = match row.question.held {
        0 | 1 => String::new(),
        more => format!(" x{more}"),
    };
    format!(
        "{mark} {state:>7}  {}  {}:{}  {program}  {}{count}  ({})",
        word("site"),
        word("host"),
        facts["port"],
        what.trim(),
        row.sandbox
    )
}

fn grant_text(granted: &Granted) -> String {
    match granted {
        Granted::Grant(sandbox, grant) => {
            let until = match &grant.kept_in {
                Some(file) => format!("in {file}"),
                None => "for the run".to_owned(),
            };
            format!("{} ({sandbox}, {until})  {}", grant.id, grant.yaml)
        }
        Granted::Muted(sandbox, program) => format!("not asked for ({sandbox})  {program}"),
    }
}

/// Draws the open question, and notes whether its end is on the screen; returns the keys.
fn question(
    screen: &mut Screen,
    frame: &mut Frame<'_>,
    area: Rect,
    mut opened: Opened,
    now: Instant,
    has_colours: bool,
) -> &'static str {
    let Some(row) = screen.row(&opened.at).cloned() else {
        line(frame, area, "gone", Style::new());
        return "q: back";
    };
    let [state, body] = Layout::vertical([Constraint::Length(1), Constraint::Min(1)]).areas(area);
    let left = row.seconds_left(now);
    let stands = match (row.is_gone, row.question.state.as_str()) {
        (true, _) => "gone: it was answered, or is asked anew".to_owned(),
        (false, "held") => format!("{} waiting, {left} s left", row.question.held),
        (false, state) => format!("{state}: nothing waits; it takes r, s and x"),
    };
    let count = row.question.lines.len();
    let stands = format!(
        "{}  {stands}   line {} of {count}",
        row.sandbox,
        opened.line + 1
    );
    let stands = cut(&stands, usize::from(state.width));
    line(
        frame,
        state,
        &stands,
        Style::new().add_modifier(Modifier::BOLD),
    );
    let mut full = with_line(&row, opened.line);
    full.push_str("\n\n");
    full.push_str(WARNING);
    if let Some(difference) = &opened.difference {
        full.push_str("\n\nSaving it changes ");
        full.push_str(difference);
    }
    let lines = wrapped(&full, usize::from(body.width));
    let height = usize::from(body.height);
    let bottom = lines.len().saturating_sub(height);
    opened.top = opened.top.min(bottom);
    text(frame, body, &lines, opened.top, style(&row, has_colours));
    if opened.top == bottom {
        opened.end_seen.get_or_insert(now);
    }
    let keys = match opened.asked {
        _ if opened.denial.is_some() => {
            "type why, which the program is told   Enter: deny   Esc: back"
        }
        Some("once") => "y: permit it once, although it is dangerous   any other key: no",
        Some("save") if opened.top < bottom => "down: more   any other key: no",
        Some("save") => "y: permit this line, and write it to the file   any other key: no",
        Some(_) => "y: permit this line until the sandbox ends   any other key: no",
        None if row.is_gone => "q: back",
        None if opened.top < bottom => "down: more   d: deny   q: back",
        None if row.is_proposal() => "r: run  s: save  d: deny  x: deny for the run  q: back",
        None => "a: once  r: run  s: save  d: deny  x: deny for the run  w, n: line  q: back",
    };
    if let Some(denial) = &opened.denial {
        screen.message = format!("why: {}_", denial.reason);
    }
    screen.view = View::Question(opened);
    keys
}

/// Returns the text of the question with the line of policy that is chosen.
fn with_line(row: &Row, chosen: usize) -> String {
    let question = &row.question;
    let is_of_line = |line: &&str| {
        ["line       ", "permits    "]
            .iter()
            .any(|of| line.starts_with(of))
    };
    let mut kept = question.text.lines().peekable();
    let mut lines = Vec::new();
    while let Some(line) = kept.next_if(|line| !is_of_line(line)) {
        lines.push(line.to_owned());
    }
    if let Some(line) = question.lines.get(chosen) {
        lines.push(format!("line       {}", line.yaml));
        for permits in &line.permits {
            lines.push(format!("permits    {permits}"));
        }
    }
    // The words of the workload stand last.
    let rest = kept.filter(|line| !is_of_line(line));
    lines.extend(rest.map(str::to_owned));
    lines.join("\n")
}

fn line(frame: &mut Frame<'_>, area: Rect, content: &str, style: Style) {
    let content = cut(content, usize::from(area.width));
    frame.render_widget(Paragraph::new(Line::styled(content, style)), area);
}

/// Draws `lines` from the one with the index `top` on.
fn text(frame: &mut Frame<'_>, area: Rect, lines: &[String], top: usize, style: Style) {
    let shown = lines.iter().skip(top).take(usize::from(area.height));
    let shown: Vec<_> = shown
        .map(|line| Line::styled(line.clone(), style))
        .collect();
    frame.render_widget(Paragraph::new(shown), area);
}

/// Draws `rows`, each cut to the width, so that the one with the index `selected` is visible.
fn list(
    frame: &mut Frame<'_>,
    area: Rect,
    rows: &[String],
    selected: Option<usize>,
    style: impl Fn(usize) -> Style,
) {
    let height = usize::from(area.height);
    let top = selected.map_or(0, |selected| (selected + 1).saturating_sub(height));
    let shown = rows.iter().enumerate().skip(top).take(height);
    let shown: Vec<_> = shown
        .map(|(index, row)| {
            let style = style(index);
            let style = if selected == Some(index) {
                style.add_modifier(Modifier::REVERSED)
            } else {
                style
            };
            Line::styled(cut(row, usize::from(area.width)), style)
        })
        .collect();
    if !shown.is_empty() {
        frame.render_widget(Paragraph::new(shown), area);
    }
}
