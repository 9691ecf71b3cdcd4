//! The settings file: names of flags and their values, in YAML. Settings are a flat map of texts and
//! lists of texts.

use std::ffi::OsString;
use std::fs;
use std::path::Path;

use clap::ArgMatches;
use tollgate_rules::yaml::{self, YamlEntry, YamlNode, YamlValue};
use tollgate_rules::{Diagnostic, Diagnostics, Source};

use super::{Flags, clap_problem};
use crate::cli::{CommandFailure, Report};

/// Largest settings file, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// One setting of the file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Setting {
    /// Name of the flag, with dashes.
    name: String,
    values: Vec<String>,
    /// Line of the name, from 1.
    line: usize,
}

impl Setting {
    /// The id of the flag in clap.
    pub(super) fn id(&self) -> String {
        self.name.replace('-', "_")
    }

    pub(super) fn is(&self, id: &str) -> bool {
        self.id() == id
    }

    /// The setting as flags of the command line.
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
            let problem = format!("unknown setting {:?}", setting.name);
            return Err(wrong(
                setting.line,
                SettingProblem(problem, Some(format!("write any of {known}"))),
            ));
        }
        if let Some(first) = settings[..index].iter().find(|first| first.name == setting.name) {
            let problem =
                format!("{:?} is given twice, first in line {}", setting.name, first.line);
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

/// The names of all settings, without hidden ones.
fn names() -> Vec<String> {
    let command = <Flags as clap::Args>::augment_args(clap::Command::new("serve"));
    let visible = command.get_arguments().filter(|arg| !arg.is_hide_set());
    visible.filter_map(|arg| arg.get_long().map(String::from)).collect()
}

/// A problem of the file without the values around it, which may hold a password; and a hint.
#[derive(Debug, PartialEq, Eq)]
struct SettingProblem(String, Option<String>);

fn problem(text: impl Into<String>, hint: &str) -> SettingProblem {
    SettingProblem(text.into(), Some(hint.into()))
}

fn not_plain() -> SettingProblem {
    let hint = "values are strings, numbers or lists of them; quote a string that begins like this";
    problem("the value is not a plain string", hint)
}

fn parse_settings(text: &str) -> Result<Vec<Setting>, (usize, SettingProblem)> {
    let source = Source::from_text("", text);
    let mut diagnostics = Diagnostics::default();
    let root = yaml::read(&source, &mut diagnostics);
    if let Some(first) = diagnostics.iter().next() {
        return Err(syntax_problem(&source, first));
    }
    let Some(root) = root else { return Ok(Vec::new()) };
    let line = root.span.line;
    match &root.value {
        YamlValue::Null => Ok(Vec::new()),
        YamlValue::Map(entries) => entries.iter().map(setting).collect(),
        YamlValue::List(_) => {
            Err((line, problem("a list without a name", "write `name:` before it")))
        }
        YamlValue::Plain(_) | YamlValue::Quoted(_) => {
            Err((line, problem("this line is not a setting", "write `name: value`")))
        }
    }
}

/// The first error of the YAML reader. Tags and aliases are not repeated.
fn syntax_problem(source: &Source, found: &Diagnostic) -> (usize, SettingProblem) {
    let line = found.span().map_or(1, |span| span.line);
    let begins = found.span().and_then(|span| source.text().get(span.start..));
    match begins.is_some_and(|text| text.starts_with(['!', '*'])) {
        true => (line, not_plain()),
        false => {
            let mut message = found.message.clone();
            if let Some(first) = found.to_json()["also"]["line"].as_u64() {
                message.push_str(&format!(", first in line {first}"));
            }
            (line, SettingProblem(message, found.hint.clone()))
        }
    }
}

fn setting(entry: &YamlEntry) -> Result<Setting, (usize, SettingProblem)> {
    let name = entry.key.replace('_', "-");
    let line = entry.key_span.line;
    let values = match &entry.node.value {
        YamlValue::List(items) => items.iter().map(scalar).collect::<Result<_, _>>()?,
        YamlValue::Null => Vec::new(),
        _ => vec![scalar(&entry.node)?],
    };
    if values.is_empty() {
        let hint = "write a value after the colon, or remove the line";
        return Err((line, problem(format!("{name:?} has no value"), hint)));
    }
    Ok(Setting { name, values, line })
}

fn scalar(node: &YamlNode) -> Result<String, (usize, SettingProblem)> {
    node.text().map(String::from).ok_or((node.span.line, not_plain()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_names_and_values() {
        let text = "# all of it\n---\nhttp: 127.0.0.1:0 # any\nmax_keys: 5_000\n\
                    rules: [a.yaml, \"b c.yaml\"]\n\nlimit: '10/second'\nlist:\n  - x\n  - 'y # z'\n";
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
    fn quotes_escapes_and_lists_are_those_of_yaml() {
        let rows: [(&str, &[&str]); 10] = [
            ("a: 'it''s'", &["it's"]),
            (r#"a: "say \"hi\"\t\u00e9""#, &["say \"hi\"\té"]),
            (r"a: 'C:\new'", &[r"C:\new"]),
            ("a: [\"b, c\", 'd]', e]", &["b, c", "d]", "e"]),
            ("a: [b,\n    c, # the last\n  ]", &["b", "c"]),
            ("a: [\n  b\n]", &["b"]),
            ("a: \"b\n  c\"", &["b c"]),
            ("a: b\n  c", &["b c"]),
            ("a: >-\n  b\n  c", &["b c"]),
            ("\"a\": &x b", &["b"]),
        ];
        for (text, want) in rows {
            let settings = parse_settings(text).expect(text);
            assert_eq!((settings.len(), &*settings[0].name), (1, "a"), "{text}");
            assert_eq!(settings[0].values, want, "{text}");
        }
        for empty in ["", "# nothing\n", "---\n", "{}"] {
            assert_eq!(parse_settings(empty), Ok(Vec::new()), "{empty:?}");
        }
    }

    #[test]
    fn what_is_no_setting_is_told_with_its_line() {
        let rows = [
            ("a: 1\n  b: 2", 2, "`name: value` cannot stand here"),
            ("a", 1, "this line is not a setting"),
            ("- a", 1, "a list without a name"),
            ("a: 1\nb: ", 2, "\"b\" has no value"),
            ("a: {b: 1}", 1, "the value is not a plain string"),
            ("a: 1\nb: [c, [d]]", 2, "the value is not a plain string"),
            ("a: !b c", 1, "the value is not a plain string"),
            ("a: []", 1, "\"a\" has no value"),
            ("a: [b", 1, "the `[` is not closed"),
            ("a: \"b", 1, "the quote that opens here is not closed"),
            ("a: 1\nb: 2\na: 3", 3, "`a` is given twice, first in line 1"),
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
            "store: *hunter2",
            "store: !hunter2",
            "store: 'redis://u:hunter2@127.0.0.1' x",
            "store: \"redis://u:\\hunter2@127.0.0.1\"",
            "store: redis://u:hunter2@127.0.0.1\n\t- x: y",
        ] {
            let (_, problem) = parse_settings(text).expect_err(text);
            assert!(!format!("{problem:?}").contains("hunter2"), "{problem:?}");
        }
    }
}
