//! The settings file: names of flags and their values, in YAML.
//!
//! Settings are a flat list, so a small part of YAML is enough: `name: value`, lists in brackets
//! or with dashes, comments. The reader says which line is wrong.

use std::ffi::OsString;
use std::fs;
use std::path::Path;

use clap::ArgMatches;

use super::{Flags, clap_problem};
use crate::cli::{CommandFailure, Report};

/// The most bytes of a settings file.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// One setting of the file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Setting {
    /// As the flag has it, with dashes.
    name: String,
    values: Vec<String>,
    /// Where it begins, from 1.
    line: usize,
}

impl Setting {
    /// The name that clap knows it by.
    pub(super) fn id(&self) -> String {
        self.name.replace('-', "_")
    }

    pub(super) fn is(&self, id: &str) -> bool {
        self.id() == id
    }

    /// As a command line would say it.
    pub(super) fn flags(&self) -> impl Iterator<Item = OsString> + '_ {
        self.values.iter().map(|value| format!("--{}={value}", self.name).into())
    }
}

/// Reads and checks a settings file.
pub(super) fn read(
    path: &Path,
    parse: &impl Fn(Vec<OsString>) -> Result<ArgMatches, clap::Error>,
) -> Result<Vec<Setting>, CommandFailure> {
    let shown = path.display();
    let text = read_bounded(path).map_err(|error| {
        CommandFailure::Input(Report::new(format!(
            "cannot read the settings file {shown}: {error}"
        )))
    })?;
    let wrong = |line: usize, problem: SettingProblem| {
        let report = Report::new(format!("{shown}:{line}: {}", problem.0));
        CommandFailure::Input(match problem.1 {
            None => report,
            Some(hint) => report.hint(hint),
        })
    };
    let settings = parse_settings(&text).map_err(|(line, problem)| wrong(line, problem))?;
    let names = names();
    for (index, setting) in settings.iter().enumerate() {
        if !names.contains(&setting.name) {
            let known = names.join(", ");
            let problem = format!("there is no setting {:?}", setting.name);
            return Err(wrong(
                setting.line,
                SettingProblem(problem, Some(format!("write any of {known}"))),
            ));
        }
        if let Some(first) = settings[..index].iter().find(|first| first.name == setting.name) {
            let problem = format!("{:?} stands here and in line {}", setting.name, first.line);
            return Err(wrong(setting.line, SettingProblem(problem, None)));
        }
        if let Err(error) = parse(setting.flags().collect()) {
            return Err(wrong(setting.line, SettingProblem(clap_problem(&error), None)));
        }
    }
    Ok(settings)
}

fn read_bounded(path: &Path) -> std::io::Result<String> {
    if fs::metadata(path)?.len() > FILE_BYTES_MAX {
        return Err(std::io::Error::other("it has more than 1 MiB"));
    }
    fs::read_to_string(path)
}

/// The names of all settings that people may write.
fn names() -> Vec<String> {
    let command = <Flags as clap::Args>::augment_args(clap::Command::new("serve"));
    let visible = command.get_arguments().filter(|arg| !arg.is_hide_set());
    visible.filter_map(|arg| arg.get_long().map(String::from)).collect()
}

/// What is wrong, and what to write.
#[derive(Debug, PartialEq, Eq)]
struct SettingProblem(String, Option<String>);

fn problem<T>(line: usize, text: &str, hint: &str) -> Result<T, (usize, SettingProblem)> {
    Err((line, SettingProblem(text.into(), Some(hint.into()))))
}

fn parse_settings(text: &str) -> Result<Vec<Setting>, (usize, SettingProblem)> {
    let mut settings: Vec<Setting> = Vec::new();
    for (index, raw) in text.lines().enumerate() {
        let line = index + 1;
        let content = without_comment(raw);
        let trimmed = content.trim();
        if trimmed.is_empty() || trimmed == "---" {
            continue;
        }
        let item = trimmed.strip_prefix("- ");
        if let Some(item) = item {
            let Some(setting) = settings.last_mut() else {
                return problem(line, "a list without a name", "write `name:` before it");
            };
            setting.values.push(scalar(item, line)?);
            continue;
        }
        if content.starts_with([' ', '\t']) {
            let hint = "settings stand at the beginning of a line, as `name: value`";
            return problem(line, "this line is indented", hint);
        }
        let Some((name, value)) = trimmed.split_once(':') else {
            return problem(line, "this line is no setting", "write `name: value`");
        };
        let name = unquoted(name.trim()).replace('_', "-");
        settings.push(Setting { name, values: values(value.trim(), line)?, line });
    }
    match settings.iter().find(|setting| setting.values.is_empty()) {
        None => Ok(settings),
        Some(setting) => {
            let text = format!("{:?} has no value", setting.name);
            problem(setting.line, &text, "write one after the colon, or leave the line out")
        }
    }
}

fn values(text: &str, line: usize) -> Result<Vec<String>, (usize, SettingProblem)> {
    match text {
        "" | "~" | "null" => Ok(Vec::new()),
        _ if text.starts_with('[') => {
            let Some(items) = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) else {
                return problem(line, "the list does not end in this line", "close it with `]`");
            };
            let items = items.split(',').map(str::trim).filter(|item| !item.is_empty());
            items.map(|item| scalar(item, line)).collect()
        }
        _ => Ok(vec![scalar(text, line)?]),
    }
}

fn scalar(text: &str, line: usize) -> Result<String, (usize, SettingProblem)> {
    let text = text.trim();
    if text.starts_with(['{', '&', '*', '!', '|', '>', '@', '`', '%']) {
        let hint = "settings are texts and numbers; put quotes around a text that begins like this";
        // The value is not repeated: it may hold a password.
        return problem(line, "the value is no plain text", hint);
    }
    if text.starts_with(['"', '\'']) && (text.len() < 2 || !text.ends_with(&text[..1])) {
        return problem(line, "the quotes do not end in this line", "close them");
    }
    Ok(unquoted(text).into())
}

fn unquoted(text: &str) -> &str {
    let quoted = |quote| text.strip_prefix(quote).and_then(|rest| rest.strip_suffix(quote));
    quoted('"').or_else(|| quoted('\'')).unwrap_or(text)
}

/// A comment begins with `#` at the beginning or after a space, outside of quotes.
fn without_comment(line: &str) -> &str {
    let (mut quote, mut before) = (None, ' ');
    for (index, c) in line.char_indices() {
        match quote {
            Some(open) if c == open => quote = None,
            Some(_) => {}
            None if c == '#' && before.is_whitespace() => return &line[..index],
            None if matches!(c, '"' | '\'') && !before.is_alphanumeric() => quote = Some(c),
            None => {}
        }
        before = c;
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_names_and_values() {
        let text = "# all of it\n---\nhttp: 127.0.0.1:0 # any\nmax_keys: 5_000\n\
                    rules: [a.yaml, \"b c.yaml\"]\n\nlimit: '10/second'\nlist:\n  - x\n- 'y # z'\n";
        let rows: [(&str, &[&str], usize); 5] = [
            ("http", &["127.0.0.1:0"], 3),
            ("max-keys", &["5_000"], 4),
            ("rules", &["a.yaml", "b c.yaml"], 5),
            ("limit", &["10/second"], 7),
            ("list", &["x", "y # z"], 8),
        ];
        let want = rows.map(|(name, values, line)| Setting {
            name: name.into(),
            values: values.iter().map(ToString::to_string).collect(),
            line,
        });
        assert_eq!(parse_settings(text).unwrap(), want);
    }

    #[test]
    fn what_is_no_setting_is_told_with_its_line() {
        let rows = [
            ("a: 1\n  b: 2", 2, "this line is indented"),
            ("a", 1, "this line is no setting"),
            ("- a", 1, "a list without a name"),
            ("a: 1\nb: ", 2, "\"b\" has no value"),
            ("a: {b: 1}", 1, "the value is no plain text"),
            ("a: [b", 1, "the list does not end"),
            ("a: \"b", 1, "the quotes do not end"),
        ];
        for (text, line, want) in rows {
            let (found, SettingProblem(problem, _)) = parse_settings(text).expect_err(text);
            assert_eq!(found, line, "{text}");
            assert!(problem.starts_with(want), "{text}: {problem}");
        }
    }

    #[test]
    fn what_is_wrong_with_a_store_is_told_without_its_password() {
        for text in [
            "second-store: {big: \"redis://u:hunter2@127.0.0.1\"}",
            "second-store:\n  - {big: \"redis://u:hunter2@127.0.0.1\"}",
            "store: [redis://u:hunter2@127.0.0.1",
            "store: 'redis://u:hunter2@127.0.0.1",
            "  redis://u:hunter2@127.0.0.1",
        ] {
            let (_, problem) = parse_settings(text).expect_err(text);
            assert!(!format!("{problem:?}").contains("hunter2"), "{problem:?}");
        }
    }
}
