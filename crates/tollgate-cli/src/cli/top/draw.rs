//! Draws the screen. All text of a server has been made safe for a terminal before it comes here, or is here.

use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row, Sparkline, Table, TableState, Wrap};

use super::screen::{KeyboardMode, TopScreen, TopView};
use super::snapshot::TrafficReply;
use super::table_rows::store_lines;
use super::text::{rates_line, status_line, upstreams_line};
use crate::cli::human_output::printable;

/// Least height at which the course of the traffic is drawn.
const COURSE_HEIGHT_MIN: u16 = 16;

/// Least width at which the column of the rule, or of limits, is drawn.
const WIDE_MIN: u16 = 60;

/// Width of a column of counts.
const COUNT_WIDTH: u16 = 9;

const HELP: &str = "\
q, Ctrl-C       quit
Tab, 1 2 3      view: keys, rules, store
s               sort by requests, refused, name
/               filter by a part of key or rule; Enter keeps it, Esc clears it
up, down, j, k  select; PageUp, PageDown, Home, End
r               reset the selected caller: what it has used is forgotten
b, u            block it for some time, unblock it
g               grant it units

Acts are asked back once, and the server logs them.
Counts of callers are those of the last one to two minutes, rates those of the last second.

Any key goes back.";

/// Draws the whole screen.
pub(super) fn draw(frame: &mut Frame<'_>, screen: &TopScreen) {
    let course_height = if frame.area().height >= COURSE_HEIGHT_MIN { 4 } else { 0 };
    let problems = screen.snapshot.as_deref().and_then(upstreams_line);
    let problems_height = u16::from(problems.is_some());
    let lines = [1, 1, problems_height, 1, course_height, 1].map(Constraint::Length);
    let rest = [Constraint::Min(0), Constraint::Length(1)];
    let areas = Layout::vertical(lines.into_iter().chain(rest)).split(frame.area());
    let [title, status, upstreams, rates, course, tabs, body, footer] = areas[..] else { return };
    frame.render_widget(title_line(screen), title);
    if let Some(problems) = problems {
        frame.render_widget(Line::from(problems).red(), upstreams);
    }
    if let Some(snapshot) = &screen.snapshot {
        frame.render_widget(Line::from(status_line(snapshot)), status);
        frame.render_widget(Line::from(rates_line(&snapshot.traffic.last_rates())), rates);
        draw_course(frame, course, &snapshot.traffic);
    }
    frame.render_widget(tabs_line(screen), tabs);
    match (&screen.mode, screen.view) {
        (KeyboardMode::Help, _) => frame.render_widget(Paragraph::new(HELP), body),
        (_, TopView::Callers) => draw_callers(frame, body, screen),
        (_, TopView::Rules) => draw_rules(frame, body, screen),
        (_, TopView::Store) => draw_store(frame, body, screen),
    }
    frame.render_widget(footer_line(screen), footer);
}

fn title_line(screen: &TopScreen) -> Line<'static> {
    let name = Span::from(format!("tollgate top  {}  ", printable(&screen.url))).bold();
    let state = match (&screen.away, &screen.snapshot) {
        (Some(problem), Some(_)) => {
            Span::from(format!("SERVER AWAY, old figures: {problem}")).red()
        }
        (Some(problem), None) => Span::from(format!("SERVER AWAY: {problem}")).red(),
        (None, None) => Span::from("connecting…"),
        (None, Some(_)) => Span::default(),
    };
    Line::from(vec![name, state])
}

/// The last minutes: admitted above, refused below.
fn draw_course(frame: &mut Frame<'_>, area: Rect, traffic: &TrafficReply) {
    let [above, below] = Layout::vertical([Constraint::Fill(1); 2]).areas(area);
    let parts = [
        (above, "allowed", &traffic.allowed, Color::Cyan),
        (below, "refused", &traffic.refused, Color::Red),
    ];
    for (area, name, series, color) in parts {
        let [label, bars] =
            Layout::horizontal([Constraint::Length(COUNT_WIDTH), Constraint::Fill(1)]).areas(area);
        let shown = traffic.complete_steps().min(series.len());
        let from = shown.saturating_sub(bars.width.into());
        let counts: Vec<u64> = series[from..shown].iter().map(|count| count.unwrap_or(0)).collect();
        let most = counts.iter().max().copied().unwrap_or(0);
        let text = format!("{name}\nmax {}", short_count(most));
        frame.render_widget(Paragraph::new(text), label);
        frame.render_widget(Sparkline::default().data(counts).style(color), bars);
    }
}

fn short_count(count: u64) -> String {
    match count {
        0..10_000 => count.to_string(),
        10_000..10_000_000 => format!("{}k", count / 1_000),
        _ => format!("{}M", count / 1_000_000),
    }
}

fn tabs_line(screen: &TopScreen) -> Line<'static> {
    let mut spans = Vec::new();
    for (index, view) in TopView::ALL.into_iter().enumerate() {
        let name = Span::from(format!(" {} {} ", index + 1, view.name()));
        spans.push(if view == screen.view { name.reversed() } else { name });
    }
    spans.push(Span::from(format!("  sort: {}", screen.order.name())));
    let is_typed = screen.mode == KeyboardMode::Filter;
    if is_typed || !screen.filter.is_empty() {
        let cursor = if is_typed { "_" } else { "" };
        spans.push(Span::from(format!("  filter: {}{cursor}", printable(&screen.filter))).yellow());
    }
    Line::from(spans)
}

fn footer_line(screen: &TopScreen) -> Line<'static> {
    match (&screen.mode, &screen.message) {
        (KeyboardMode::Question { action, caller, value }, _) => {
            let mut text = action.question(caller);
            if let Some(value) = value {
                text += &format!("{}_", printable(value));
            }
            Line::from(text).yellow()
        }
        (KeyboardMode::Filter, _) => {
            Line::from("Type a part of a key or rule; Enter keeps it, Esc clears it")
        }
        (_, Some(message)) => Line::from(message.clone()).yellow(),
        (_, None) => Line::from(
            "q quit  ? help  Tab view  s sort  / filter  r reset  b block  u unblock  g grant",
        )
        .dim(),
    }
}

fn count_cell(count: Option<String>) -> Cell<'static> {
    Cell::from(Line::from(count.unwrap_or_default()).alignment(Alignment::Right))
}

fn table_of(
    rows: Vec<Row<'static>>,
    head: Vec<Cell<'static>>,
    widths: Vec<Constraint>,
) -> Table<'static> {
    let head = Row::new(head).style(Style::new().add_modifier(Modifier::BOLD));
    Table::new(rows, widths).header(head).row_highlight_style(Modifier::REVERSED)
}

fn draw_callers(frame: &mut Frame<'_>, area: Rect, screen: &TopScreen) {
    let rows = screen.caller_rows();
    if rows.is_empty() {
        let text = match (&screen.snapshot, screen.filter.is_empty()) {
            (None, _) => "",
            (Some(_), true) => "No callers in the last minutes.",
            (Some(_), false) => "No caller matches the filter.",
        };
        frame.render_widget(Paragraph::new(text), area);
        return;
    }
    let is_wide = area.width >= WIDE_MIN;
    let selected = screen.selected_caller_row(&rows);
    let cells = rows.iter().map(|row| {
        let mut cells = vec![Cell::from(printable(&row.caller.key))];
        if is_wide {
            cells.push(Cell::from(printable(&row.caller.rule)));
        }
        cells.push(count_cell(row.requests.map(|count| count.to_string())));
        cells.push(count_cell(Some(row.refused.to_string())));
        Row::new(cells)
    });
    let mut head = vec![Cell::from("key")];
    let mut widths = vec![Constraint::Fill(2)];
    if is_wide {
        head.push(Cell::from("rule"));
        widths.push(Constraint::Fill(1));
    }
    head.extend(["requests", "refused"].map(|name| count_cell(Some(name.into()))));
    widths.extend([Constraint::Length(COUNT_WIDTH); 2]);
    let table = table_of(cells.collect(), head, widths);
    let mut state = TableState::default().with_selected(Some(selected));
    frame.render_stateful_widget(table, area, &mut state);
}

fn draw_rules(frame: &mut Frame<'_>, area: Rect, screen: &TopScreen) {
    let rows = screen.rule_rows();
    if rows.is_empty() {
        let has_filter = screen.snapshot.is_some() && !screen.filter.is_empty();
        let text = if has_filter { "No rule matches the filter." } else { "" };
        frame.render_widget(Paragraph::new(text), area);
        return;
    }
    let is_wide = area.width >= WIDE_MIN;
    let selected = screen.selected_rule_row(rows.len());
    let cells = rows.into_iter().map(|row| {
        let rate = |rate: f64| format!("{rate:.0}");
        let mut cells = vec![Cell::from(row.name)];
        if is_wide {
            cells.extend([Cell::from(row.mode), Cell::from(row.limits)]);
        }
        cells.push(count_cell(row.rates.map(|(requests, _)| rate(requests))));
        cells.push(count_cell(row.rates.map(|(_, refused)| rate(refused))));
        cells.extend([row.allowed, row.refused].map(|count| count_cell(Some(short_count(count)))));
        if is_wide {
            cells.push(count_cell(Some(short_count(row.shadow))));
        }
        Row::new(cells)
    });
    let (mut head, mut widths) = (vec![Cell::from("rule")], vec![Constraint::Fill(2)]);
    let mut counts = vec!["req/s", "ref/s", "allowed", "refused"];
    if is_wide {
        head.extend(["mode", "limits"].map(Cell::from));
        widths.extend([Constraint::Length(7), Constraint::Fill(3)]);
        counts.push("shadow");
    }
    widths.extend(counts.iter().map(|_| Constraint::Length(7)));
    head.extend(counts.iter().map(|name| count_cell(Some((*name).into()))));
    let table = table_of(cells.collect(), head, widths);
    let mut state = TableState::default().with_selected(Some(selected));
    frame.render_stateful_widget(table, area, &mut state);
}

fn draw_store(frame: &mut Frame<'_>, area: Rect, screen: &TopScreen) {
    if let Some(snapshot) = &screen.snapshot {
        let text = store_lines(snapshot).join("\n");
        frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: false }), area);
    }
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::snapshot::ServerSnapshot;
    use super::super::worker::TopUpdate;
    use super::*;

    fn screen() -> TopScreen {
        let by_requests = serde_json::from_str(
            r#"{"top":[{"rule":"r\u001b]0;x\u0007","key":"user=\u001b[2J\r\n\u202e","count":9,"refused":1}]}"#,
        )
        .unwrap();
        let mut snapshot = ServerSnapshot { by_requests, ..ServerSnapshot::default() };
        snapshot.status.store.kind = "redis\u{9b}31m".into();
        let mut screen = TopScreen::new("http://localhost".into());
        screen.on_update(TopUpdate::Look(Box::new(snapshot), 0.0));
        screen
    }

    /// The text of the screen in so many columns and lines.
    fn text(screen: &TopScreen, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, screen)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn text_of_a_server_does_not_drive_the_terminal() {
        let mut screen = screen();
        screen.on_update(TopUpdate::Away("\u{1b}c".into()));
        for view in TopView::ALL {
            screen.view = view;
            let text = text(&screen, 120, 30);
            let is_safe = |c: char| !c.is_control() && c != '\u{202e}';
            assert!(text.chars().all(|c| c == '\n' || is_safe(c)), "{view:?}: {text:?}");
        }
        screen.view = TopView::Callers;
        assert!(text(&screen, 120, 30).contains(r"user=\u{1b}[2J\r\n\u{202e}"));
    }

    #[test]
    fn every_size_is_drawn() {
        let mut screen = screen();
        for (width, height) in [(1, 1), (2, 5), (20, 8), (40, 15), (80, 24), (300, 100)] {
            for view in TopView::ALL {
                for mode in [KeyboardMode::Commands, KeyboardMode::Help, KeyboardMode::Filter] {
                    screen.view = view;
                    screen.mode = mode;
                    text(&screen, width, height);
                }
            }
        }
    }
}
