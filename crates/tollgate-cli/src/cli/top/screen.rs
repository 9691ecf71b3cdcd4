//! The state of the screen: what keys and updates do to it. It draws nothing and asks nobody.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::key_action::{KeyAction, NamedCaller};
use super::snapshot::{RankedRuleReply, ServerSnapshot};
use super::table_rows::{CallerRow, RowOrder, RuleRow, caller_rows, rule_rows};
use super::worker::{TopUpdate, WorkerCommand};
use crate::cli::human_output::printable_whole;

/// Most characters of a filter.
const FILTER_CHARS_MAX: usize = 100;

/// Most characters of a value, such as the length of a block.
const VALUE_CHARS_MAX: usize = 20;

/// Rows that PageUp and PageDown move by.
const PAGE_ROWS: usize = 10;

/// A part of the figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TopView {
    Callers,
    Rules,
    Store,
}

impl TopView {
    pub(super) const ALL: [TopView; 3] = [TopView::Callers, TopView::Rules, TopView::Store];

    pub(super) fn name(self) -> &'static str {
        match self {
            TopView::Callers => "Keys",
            TopView::Rules => "Rules",
            TopView::Store => "Store",
        }
    }
}

/// The meaning of the keys that are pressed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum KeyboardMode {
    Commands,
    Help,
    /// The filter is being typed.
    Filter,
    /// An act was asked back; the value is being typed if it needs one.
    Question {
        action: KeyAction,
        caller: NamedCaller,
        value: Option<String>,
    },
}

/// Everything that is shown.
#[derive(Debug)]
pub(super) struct TopScreen {
    /// Address of the server.
    pub(super) url: String,
    pub(super) view: TopView,
    pub(super) order: RowOrder,
    pub(super) filter: String,
    pub(super) mode: KeyboardMode,
    pub(super) snapshot: Option<Box<ServerSnapshot>>,
    /// The rules of the look before, and the seconds between the two.
    before: Option<(Vec<RankedRuleReply>, f64)>,
    /// The problem, while the server does not answer.
    pub(super) away: Option<String>,
    /// The result of the last act.
    pub(super) message: Option<String>,
    /// The selected caller. It stays selected when rows move, so that an act does not hit another.
    selected_caller: Option<NamedCaller>,
    selected_row: usize,
    pub(super) is_done: bool,
}

impl TopScreen {
    pub(super) fn new(url: String) -> TopScreen {
        TopScreen {
            url,
            view: TopView::Callers,
            order: RowOrder::Requests,
            filter: String::new(),
            mode: KeyboardMode::Commands,
            snapshot: None,
            before: None,
            away: None,
            message: None,
            selected_caller: None,
            selected_row: 0,
            is_done: false,
        }
    }

    /// The rows of callers.
    pub(super) fn caller_rows(&self) -> Vec<CallerRow> {
        let snapshot = self.snapshot.as_deref();
        snapshot.map(|one| caller_rows(one, self.order, &self.filter)).unwrap_or_default()
    }

    /// The rows of rules.
    pub(super) fn rule_rows(&self) -> Vec<RuleRow> {
        let Some(snapshot) = &self.snapshot else { return Vec::new() };
        let before = self.before.as_ref().map(|(rules, seconds)| (&rules[..], *seconds));
        rule_rows(&snapshot.rules, before, self.order, &self.filter)
    }

    /// The selected row of so many callers.
    pub(super) fn selected_caller_row(&self, rows: &[CallerRow]) -> usize {
        let selected = self.selected_caller.as_ref();
        let found = selected.and_then(|caller| rows.iter().position(|row| row.caller == *caller));
        found.unwrap_or_else(|| self.selected_row.min(rows.len().saturating_sub(1)))
    }

    /// The selected row of so many rules.
    pub(super) fn selected_rule_row(&self, rows: usize) -> usize {
        self.selected_row.min(rows.saturating_sub(1))
    }

    /// Takes news of the worker.
    pub(super) fn on_update(&mut self, update: TopUpdate) {
        match update {
            TopUpdate::Look(snapshot, seconds) => {
                let last = self.snapshot.replace(snapshot);
                self.before = last.filter(|_| seconds > 0.0).map(|last| (last.rules, seconds));
                self.away = None;
            }
            TopUpdate::Away(problem) => self.away = Some(one_line(&problem)),
            TopUpdate::Acted(text) => self.message = Some(one_line(&text)),
            TopUpdate::Stop => self.is_done = true,
        }
    }

    /// Says that an act could not be sent because earlier ones wait for the server.
    pub(super) fn on_sent(&mut self, is_sent: bool) {
        if !is_sent {
            self.message = Some("Nothing was done: the server has not answered yet.".into());
        }
    }

    /// Takes a key; returns an act for the worker if the user has confirmed one.
    pub(super) fn on_key(&mut self, key: KeyEvent) -> Option<WorkerCommand> {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            self.is_done |= key.code == KeyCode::Char('c');
            return None;
        }
        if key.modifiers.contains(KeyModifiers::ALT) {
            // A terminal sends Esc and a key that follows it quickly like Alt and that key.
            self.on_key(KeyEvent::from(KeyCode::Esc));
        }
        match &mut self.mode {
            KeyboardMode::Help => self.mode = KeyboardMode::Commands,
            KeyboardMode::Filter => self.on_filter_key(key.code),
            KeyboardMode::Question { .. } => return self.on_answer_key(key.code),
            KeyboardMode::Commands => self.on_command_key(key.code),
        }
        None
    }

    fn on_command_key(&mut self, code: KeyCode) {
        self.message = None;
        match code {
            KeyCode::Char('q') => self.is_done = true,
            KeyCode::Char('?' | 'h') => self.mode = KeyboardMode::Help,
            KeyCode::Char('/') => self.mode = KeyboardMode::Filter,
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Char('s') => self.order = self.order.next(),
            KeyCode::Char(digit @ '1'..='3') => {
                self.view = TopView::ALL[digit as usize - '1' as usize]
            }
            KeyCode::Tab => self.turn_view(1),
            KeyCode::BackTab => self.turn_view(TopView::ALL.len() - 1),
            KeyCode::Up | KeyCode::Char('k') => self.select(|row| row.saturating_sub(1)),
            KeyCode::Down | KeyCode::Char('j') => self.select(|row| row.saturating_add(1)),
            KeyCode::PageUp => self.select(|row| row.saturating_sub(PAGE_ROWS)),
            KeyCode::PageDown => self.select(|row| row.saturating_add(PAGE_ROWS)),
            KeyCode::Home => self.select(|_| 0),
            KeyCode::End => self.select(|_| usize::MAX),
            KeyCode::Char(letter) => {
                if let Some(action) = KeyAction::of_key(letter) {
                    self.ask_back(action);
                }
            }
            _ => {}
        }
    }

    fn turn_view(&mut self, steps: usize) {
        let index = TopView::ALL.iter().position(|view| *view == self.view).unwrap_or(0);
        self.view = TopView::ALL[(index + steps) % TopView::ALL.len()];
    }

    fn select(&mut self, to: impl FnOnce(usize) -> usize) {
        match self.view {
            TopView::Callers => {
                let rows = self.caller_rows();
                let row = to(self.selected_caller_row(&rows)).min(rows.len().saturating_sub(1));
                self.selected_row = row;
                self.selected_caller = rows.get(row).map(|row| row.caller.clone());
            }
            TopView::Rules => {
                let rows = self.rule_rows().len();
                self.selected_row = to(self.selected_rule_row(rows)).min(rows.saturating_sub(1));
            }
            TopView::Store => {}
        }
    }

    fn ask_back(&mut self, action: KeyAction) {
        let rows = self.caller_rows();
        let selected = rows.get(self.selected_caller_row(&rows));
        let Some(selected) = selected.filter(|_| self.view == TopView::Callers) else {
            self.message = Some("Select a caller in the view Keys first.".into());
            return;
        };
        let caller = selected.caller.clone();
        self.selected_caller = Some(caller.clone());
        let value = action.default_value().map(String::from);
        self.mode = KeyboardMode::Question { action, caller, value };
    }

    fn on_filter_key(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.mode = KeyboardMode::Commands,
            KeyCode::Esc => {
                self.filter.clear();
                self.mode = KeyboardMode::Commands;
            }
            code => edit(&mut self.filter, code, FILTER_CHARS_MAX),
        }
    }

    fn on_answer_key(&mut self, code: KeyCode) -> Option<WorkerCommand> {
        let KeyboardMode::Question { action, caller, value } = &mut self.mode else { return None };
        let is_confirmed = match (value.as_mut(), code) {
            (_, KeyCode::Esc) | (None, KeyCode::Char('n' | 'N')) => false,
            (Some(_), KeyCode::Enter) | (None, KeyCode::Char('y' | 'Y')) => true,
            (Some(value), code) => {
                edit(value, code, VALUE_CHARS_MAX);
                return None;
            }
            (None, _) => return None,
        };
        let command = WorkerCommand {
            action: *action,
            caller: caller.clone(),
            value: value.clone().unwrap_or_default(),
        };
        let problem = command.action.request(&command.caller, &command.value).err();
        self.message = match (is_confirmed, &problem) {
            (false, _) => Some("Nothing was done.".into()),
            (true, Some(problem)) => Some(format!("Nothing was done: {problem}.")),
            (true, None) => None,
        };
        self.mode = KeyboardMode::Commands;
        (is_confirmed && problem.is_none()).then_some(command)
    }
}

/// Changes a line of text by one key.
fn edit(text: &mut String, code: KeyCode, chars_max: usize) {
    match code {
        KeyCode::Backspace => drop(text.pop()),
        KeyCode::Char(c) if !c.is_control() && text.chars().count() < chars_max => text.push(c),
        _ => {}
    }
}

/// Text of a server as one line, safe for a terminal.
fn one_line(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    printable_whole(&lines.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(callers: &[&str]) -> Box<ServerSnapshot> {
        let mut snapshot = ServerSnapshot::default();
        let top = callers.iter().enumerate().map(|(index, key)| {
            serde_json::json!({ "rule": "api", "key": key, "count": 100 - index, "refused": index })
        });
        let top = serde_json::json!({ "top": top.collect::<Vec<_>>() });
        snapshot.by_requests = serde_json::from_value(top.clone()).unwrap();
        snapshot.by_refusals = serde_json::from_value(top).unwrap();
        Box::new(snapshot)
    }

    fn screen(callers: &[&str]) -> TopScreen {
        let mut screen = TopScreen::new("http://localhost".into());
        screen.on_update(TopUpdate::Look(snapshot(callers), 0.0));
        screen
    }

    fn press(screen: &mut TopScreen, keys: &str) -> Option<WorkerCommand> {
        let mut last = None;
        for key in keys.chars() {
            let code = match key {
                '\n' => KeyCode::Enter,
                '\u{1b}' => KeyCode::Esc,
                '\u{8}' => KeyCode::Backspace,
                '↓' => KeyCode::Down,
                '\t' => KeyCode::Tab,
                key => KeyCode::Char(key),
            };
            last = screen.on_key(KeyEvent::new(code, KeyModifiers::NONE));
        }
        last
    }

    #[test]
    fn acts_are_asked_back_once() {
        type ExpectedAct = Option<(KeyAction, &'static str)>;
        // keys, the act with its value, the message
        let rows: [(&str, ExpectedAct, Option<&str>); 8] = [
            ("ry", Some((KeyAction::Reset, "")), None),
            ("rn", None, Some("Nothing was done.")),
            ("rx", None, None),
            ("uy", Some((KeyAction::Unblock, "")), None),
            ("b\n", Some((KeyAction::Block, "15m")), None),
            ("b\u{8}h\n", Some((KeyAction::Block, "15h")), None),
            ("b\u{1b}", None, Some("Nothing was done.")),
            ("gx\n", None, Some("Nothing was done: write a number of units, at least 1.")),
        ];
        for (keys, want, message) in rows {
            let mut screen = screen(&["user=a", "user=b"]);
            let command = press(&mut screen, &format!("↓{keys}"));
            let found = command.as_ref().map(|one| (one.action, &*one.value));
            assert_eq!(found, want, "{keys:?}");
            assert!(command.is_none_or(|command| command.caller.key == "user=b"));
            assert_eq!(screen.message.as_deref(), message, "{keys:?}");
        }
        // Esc and, quickly after it, a key that would confirm.
        let mut hasty = screen(&["user=a"]);
        press(&mut hasty, "r");
        assert_eq!(hasty.on_key(KeyEvent::new(KeyCode::Char('y'), KeyModifiers::ALT)), None);
        assert_eq!(hasty.mode, KeyboardMode::Commands);
        let mut other = screen(&["user=a"]);
        press(&mut other, "2r");
        assert_eq!(
            other.mode,
            KeyboardMode::Commands,
            "no caller is selected in the view of rules"
        );
        press(&mut screen(&[]), "r");
    }

    #[test]
    fn the_selection_stays_with_its_caller() {
        let mut screen = screen(&["user=a", "user=b", "user=c"]);
        press(&mut screen, "↓");
        screen.on_update(TopUpdate::Look(snapshot(&["user=c", "user=a", "user=b"]), 1.0));
        assert_eq!(screen.selected_caller_row(&screen.caller_rows()), 2);
        let command = press(&mut screen, "ry").expect("an act");
        assert_eq!(command.caller.key, "user=b");
        // A question is about the caller of the moment when it was asked.
        press(&mut screen, "r");
        screen.on_update(TopUpdate::Look(snapshot(&["user=z"]), 1.0));
        assert_eq!(press(&mut screen, "y").expect("an act").caller.key, "user=b");
    }

    #[test]
    fn filters_sort_orders_and_views_follow_the_keys() {
        let mut screen = screen(&["user=a", "user=b"]);
        press(&mut screen, "/=Bq");
        assert_eq!((&*screen.filter, screen.is_done), ("=Bq", false));
        press(&mut screen, "\u{8}\n");
        assert_eq!(screen.caller_rows().len(), 1);
        press(&mut screen, "\u{1b}s\t");
        assert_eq!(
            (&*screen.filter, screen.order, screen.view),
            ("", RowOrder::Refused, TopView::Rules)
        );
        press(&mut screen, &"/x".repeat(2_000));
        assert_eq!(screen.filter.chars().count(), FILTER_CHARS_MAX);
        press(&mut screen, "\n?q");
        assert!(!screen.is_done, "any key leaves the help");
        press(&mut screen, "q");
        assert!(screen.is_done);
    }

    #[test]
    fn a_server_that_is_away_is_told_safely() {
        let mut screen = screen(&["user=a"]);
        screen.on_update(TopUpdate::Away("gone\u{1b}[2J\nhint: start it".into()));
        assert_eq!(screen.away.as_deref(), Some("gone\\u{1b}[2J; hint: start it"));
        assert_eq!(screen.caller_rows().len(), 1, "the last figures stay");
        screen.on_update(TopUpdate::Look(snapshot(&[]), 0.0));
        assert_eq!(screen.away, None);
        screen.on_update(TopUpdate::Stop);
        assert!(screen.is_done);
    }
}
