//! What a rules file may contain: one table of objects and fields, in `file_table`,
//! `rule_table` and `gateway_table`; `import_table` is that of files of envoyproxy/ratelimit.
//!
//! The reader below and the JSON Schema of `schema` walk the same table, so that a field cannot be
//! in one and not in the other. The reader looks at form: known fields, the right kind of value,
//! nothing required missing. What values mean, `compile` finds out; whatever this reader has
//! reported, `compile` passes over in silence.

mod file_table;
mod gateway_table;
mod import_table;
mod kinds;
mod misplaced;
mod rule_table;
#[cfg(test)]
mod typos;

use crate::Problem;
use crate::diagnostic::{Diagnostic, Diagnostics, MAX_SHOWN, Span};
use crate::source::Source;
use crate::suggest::suggest;
use crate::yaml::{YamlEntry, YamlNode, YamlValue};

pub(crate) use file_table::FILE;
pub(crate) use import_table::IMPORT;

/// A map with fixed fields.
pub(crate) struct ShapeObject {
    /// Its name in the schema.
    pub(crate) id: &'static str,
    /// The noun for messages, with its article.
    pub(crate) noun: &'static str,
    /// One sentence.
    pub(crate) doc: &'static str,
    pub(crate) fields: &'static [ShapeField],
    /// Names that the writer chooses, beside the fields.
    pub(crate) free_fields: Option<&'static FreeFields>,
    /// Advice on what to write, if exactly one field must be given.
    pub(crate) one_field: Option<&'static str>,
}

/// One field of an object.
pub(crate) struct ShapeField {
    pub(crate) name: &'static str,
    pub(crate) kind: ShapeKind,
    pub(crate) required: bool,
    /// One sentence.
    pub(crate) doc: &'static str,
    /// A line that can be pasted.
    pub(crate) example: &'static str,
}

/// Names that the writer chooses, and the kind of their values.
pub(crate) struct FreeFields {
    /// The description of the names.
    pub(crate) doc: &'static str,
    pub(crate) kind: ShapeKind,
    pub(crate) example: &'static str,
    /// A pattern that all names fit, for the schema. `compile` reports more about those that do
    /// not.
    pub(crate) pattern: Option<&'static str>,
}

/// The kind of a value.
pub(crate) enum ShapeKind {
    /// Any scalar; the text says what it is, with its article. Its meaning is checked later.
    Text(&'static str),
    /// The same, with a pattern for the schema.
    PatternText(&'static str, TextPattern),
    /// A decimal number; its meaning is checked later.
    Decimal(&'static str),
    /// A whole number from, to.
    Whole(u64, u64),
    Boolean,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A list; the text names its items.
    List(&'static str, &'static ShapeKind),
    /// A list of one to so many items. Its length is checked later.
    BoundedList(&'static str, &'static ShapeKind, usize),
    Object(&'static ShapeObject),
    /// Any value of any form, also none.
    Any,
    /// One of these, distinguished by their form: word, other scalar, list or map.
    Either(&'static [ShapeKind]),
}

/// A pattern that every valid text fits, as far as a regular expression can tell.
#[derive(Clone, Copy)]
pub(crate) enum TextPattern {
    /// The value may also be a number or a boolean to YAML.
    Loose(&'static str),
    /// The value is always a string to YAML.
    Strict(&'static str),
}

/// The form in which a value is written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum YamlForm {
    Scalar,
    List,
    Map,
}

impl ShapeKind {
    fn has_form(&self, form: YamlForm) -> bool {
        match self {
            ShapeKind::Text(_)
            | ShapeKind::PatternText(..)
            | ShapeKind::Decimal(_)
            | ShapeKind::Whole(..)
            | ShapeKind::Boolean
            | ShapeKind::Choice(_) => form == YamlForm::Scalar,
            ShapeKind::List(..) | ShapeKind::BoundedList(..) => form == YamlForm::List,
            ShapeKind::Object(_) => form == YamlForm::Map,
            ShapeKind::Any => true,
            ShapeKind::Either(kinds) => kinds.iter().any(|kind| kind.has_form(form)),
        }
    }

    /// A description for messages.
    fn describe(&self) -> String {
        match self {
            ShapeKind::Text(what) | ShapeKind::PatternText(what, _) | ShapeKind::Decimal(what) => {
                (*what).into()
            }
            ShapeKind::Whole(..) => "a whole number".into(),
            ShapeKind::Boolean => "`true` or `false`".into(),
            ShapeKind::Any => "anything".into(),
            ShapeKind::Choice(words) => {
                words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(" or ")
            }
            ShapeKind::List(what, _) | ShapeKind::BoundedList(what, ..) => {
                format!("a list of {what}")
            }
            ShapeKind::Object(object) if object.fields.is_empty() => {
                format!("a map, {}", object.noun)
            }
            ShapeKind::Object(object) => format!("a map with the fields of {}", object.noun),
            ShapeKind::Either(kinds) => {
                kinds.iter().map(ShapeKind::describe).collect::<Vec<_>>().join(", or ")
            }
        }
    }
}

/// Reports everything in a tree that does not have this form.
pub(crate) fn check_file(
    source: &Source,
    root: &YamlNode,
    form: &'static ShapeObject,
    diagnostics: &mut Diagnostics,
) {
    let nulls_are_left_out = std::ptr::eq(form, &IMPORT);
    ShapeChecker { source, diagnostics, nulls_are_left_out }.object(root, form);
}

struct ShapeChecker<'a> {
    source: &'a Source,
    diagnostics: &'a mut Diagnostics,
    /// True if an optional field without a value counts as left out, as in the reference server,
    /// and gets only a warning.
    nulls_are_left_out: bool,
}

/// The name of a value that is being checked, and an example of one.
#[derive(Clone, Copy)]
struct NamedValue<'a> {
    name: &'a str,
    example: &'a str,
    required: bool,
}

impl ShapeObject {
    fn field(&self, name: &str) -> Option<&'static ShapeField> {
        self.fields.iter().find(|field| *field.name == *name)
    }

    /// The field that a misspelt name was meant to be.
    fn suggest(&self, name: &str) -> Option<&'static str> {
        suggest(name, self.fields.iter().map(|field| field.name))
    }
}

impl ShapeChecker<'_> {
    fn object(&mut self, node: &YamlNode, object: &'static ShapeObject) {
        for entry in node.entries() {
            if let Some(ShapeField { kind, name, example, required, .. }) = object.field(&entry.key)
            {
                let named = NamedValue { name, example, required: *required };
                self.value(&entry.node, entry.key_span, kind, named);
            } else if let Some(others) = object.free_fields {
                let named =
                    NamedValue { name: &entry.key, example: others.example, required: false };
                self.value(&entry.node, entry.key_span, &others.kind, named);
            } else {
                self.unknown_field(&entry.key, entry.key_span, object);
            }
        }
        if let Some(hint) = object.one_field.filter(|_| node.entries().len() != 1) {
            let problem = format!("{} has exactly one field", object.noun);
            self.error(node.span, Problem::new(problem).hint(hint));
        }
        for field in object.fields.iter().filter(|field| field.required) {
            // A field under a misspelt name is reported for its name, not as missing.
            let meant = |entry: &YamlEntry| {
                object.field(&entry.key).is_none() && object.suggest(&entry.key) == Some(field.name)
            };
            // Only among the first, because comparing takes time.
            let misspelt = || node.entries().iter().take(object.fields.len()).any(meant);
            if node.entry(field.name).is_none() && !misspelt() {
                let problem = format!("{} needs the field `{}`", object.noun, field.name);
                self.error(
                    node.span,
                    Problem::new(problem).hint(format!("write `{}`", field.example)),
                );
            }
        }
    }

    fn unknown_field(&mut self, key: &str, span: Span, object: &ShapeObject) {
        let problem = Problem::new(format!("there is no field `{key}` in {}", object.noun));
        // Later errors are not shown, and comparing takes time.
        if self.diagnostics.len() >= MAX_SHOWN {
            return self.error(span, problem);
        }
        let names: Vec<&str> = object.fields.iter().map(|field| field.name).collect();
        let misplaced = misplaced::advice(object, key);
        let hint = misplaced.unwrap_or_else(|| match (object.suggest(key), &names[..]) {
            (Some(name), _) => format!("did you mean `{name}`?"),
            (None, [only]) => format!("its only field is `{only}`"),
            (None, all) => misplaced::advice_for_misspelt(object, key)
                .unwrap_or_else(|| format!("it has the fields {}", all.join(", "))),
        });
        self.error(span, problem.hint(hint));
    }

    fn value(
        &mut self,
        node: &YamlNode,
        key_span: Span,
        kind: &'static ShapeKind,
        named: NamedValue<'_>,
    ) {
        let form = match &node.value {
            YamlValue::Null if matches!(kind, ShapeKind::Any) => return,
            YamlValue::Null => {
                let problem = format!("`{}` has no value", named.name);
                let or = if named.required { "" } else { ", or leave it out" };
                let hint = format!("write `{}`{or}", named.example);
                let problem = Problem::new(problem).hint(hint);
                return match self.nulls_are_left_out && !named.required {
                    true => {
                        let warning = Diagnostic::warning(self.source, key_span, problem);
                        self.diagnostics.push(warning);
                    }
                    false => self.error(key_span, problem),
                };
            }
            YamlValue::Plain(_) | YamlValue::Quoted(_) => YamlForm::Scalar,
            YamlValue::List(_) => YamlForm::List,
            YamlValue::Map(_) => YamlForm::Map,
        };
        if !kind.has_form(form) {
            let is = match form {
                YamlForm::Scalar => "a single value",
                YamlForm::List => "a list",
                YamlForm::Map => "a map",
            };
            let problem = format!("`{}` is {is}; it should be {}", named.name, kind.describe());
            let problem = Problem::new(problem).hint(format!("write `{}`", named.example));
            return self.error(node.span, problem);
        }
        match kind {
            ShapeKind::Text(_)
            | ShapeKind::PatternText(..)
            | ShapeKind::Decimal(_)
            | ShapeKind::Any => {}
            ShapeKind::Whole(from, to) => self.whole(node, *from, *to, named),
            ShapeKind::Boolean => self.boolean(node, named),
            ShapeKind::Choice(words) => self.choice(node, words, named),
            ShapeKind::List(_, kind) | ShapeKind::BoundedList(_, kind, _) => {
                for item in node.items() {
                    self.value(item, item.span, kind, named);
                }
            }
            ShapeKind::Object(object) => self.object(node, object),
            ShapeKind::Either(kinds) => {
                // A word is one of the choices, if there are any; other scalars are numbers.
                let is_word = node.text().is_some_and(|text| text.starts_with(char::is_alphabetic));
                let choice = kinds.iter().find(|kind| matches!(kind, ShapeKind::Choice(_)));
                let fitting = kinds.iter().find(|kind| kind.has_form(form));
                let kind = choice.filter(|_| is_word).or(fitting);
                self.value(node, key_span, kind.expect("one of them has this form"), named);
            }
        }
    }

    fn whole(&mut self, node: &YamlNode, from: u64, to: u64, named: NamedValue<'_>) {
        let Err(what) = whole(&node.value, from, to) else { return };
        if let Some(hint) = node.text().and_then(|text| octal_hint(named.name, text)) {
            let problem = format!("`{}` {what}", named.name);
            return self.error(node.span, Problem::new(problem).hint(hint));
        }
        let problem = Problem::new(format!("`{}` {what}", named.name));
        let unquoted = node.text().and_then(|text| text.trim().parse::<u64>().ok());
        let hint = match unquoted.filter(|number| (from..=to).contains(number)) {
            Some(number) => format!("write `{}: {number}`", named.name),
            // The example of a field that can also be a map would not show a number.
            None if named.example.contains('{') => {
                format!("write `{}: {}`", named.name, from.max(1))
            }
            None => format!("write `{}`", named.example),
        };
        self.error(node.span, problem.hint(hint));
    }

    fn boolean(&mut self, node: &YamlNode, named: NamedValue<'_>) {
        if boolean(&node.value).is_some() {
            return;
        }
        let text = node.text().unwrap_or_default();
        let hint = match text.to_ascii_lowercase().as_str() {
            "yes" | "on" | "y" | "1" | "true" => format!("write `{}: true`", named.name),
            "no" | "off" | "n" | "0" | "false" => format!("write `{}: false`", named.name),
            _ => format!("write `{}`", named.example),
        };
        let problem = format!("`{}` is {text:?}; it should be `true` or `false`", named.name);
        self.error(node.span, Problem::new(problem).hint(hint));
    }

    fn choice(&mut self, node: &YamlNode, words: &'static [&'static str], named: NamedValue<'_>) {
        let text = node.text().unwrap_or_default();
        if words.contains(&text) {
            return;
        }
        let all = words.join(", ");
        // A part of a name, such as `log`, is meant to be that name if there is only one.
        let mut longer = words.iter().copied().filter(|word| text.len() > 2 && word.contains(text));
        let part = longer.next().filter(|_| longer.next().is_none());
        // Later errors are not shown, and comparing takes time.
        let seen = self.diagnostics.len() < MAX_SHOWN;
        let near = || seen.then(|| suggest(text, words.iter().copied())).flatten();
        let hint = match part.or_else(near) {
            Some(word) => format!("did you mean `{word}`? It can be: {all}"),
            None => format!("it can be: {all}"),
        };
        let problem = format!("`{}` cannot be {text:?}", named.name);
        self.error(node.span, Problem::new(problem).hint(hint));
    }

    fn error(&mut self, span: Span, problem: Problem) {
        self.diagnostics.push(Diagnostic::error(self.source, span, problem));
    }
}

/// A whole number within bounds, or what is wrong with it.
fn whole(value: &YamlValue, from: u64, to: u64) -> Result<u64, String> {
    let YamlValue::Plain(text) = value else {
        return Err("is a text in quotes; it should be a whole number without them".into());
    };
    let digits = text.strip_prefix('-').unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!("is {text:?}; it should be a whole number"));
    }
    if has_leading_zero(digits) {
        return Err(format!(
            "is {text}, and YAML 1.1 readers take a number with a leading 0 for octal"
        ));
    }
    match text.parse::<u64>() {
        Ok(number) if number < from => Err(format!("is {number}; it should be at least {from}")),
        Ok(number) if number > to => Err(format!("is {number}; it should be at most {to}")),
        Ok(number) => Ok(number),
        Err(_) if text.starts_with('-') => {
            Err(format!("is {text}, which is negative; it should be at least {from}"))
        }
        Err(_) => Err(format!("is {text}; it should be at most {to}")),
    }
}

/// Returns true if YAML 1.1, which the reference server and many tools read, could take digits for
/// an octal number.
pub(crate) fn has_leading_zero(digits: &str) -> bool {
    digits.len() > 1 && digits.starts_with('0')
}

/// Advice for a number with a leading zero.
pub(crate) fn octal_hint(name: &str, text: &str) -> Option<String> {
    let digits = Some(text).filter(|text| has_leading_zero(text))?;
    let decimal: u64 = digits.parse().ok()?;
    Some(match u64::from_str_radix(digits, 8) {
        Ok(octal) if octal != decimal => {
            format!("write `{name}: {decimal}`, or `{name}: {octal}` if it was meant to be octal")
        }
        _ => format!("write `{name}: {decimal}`"),
    })
}

/// Reads a boolean of YAML's core schema.
fn boolean(value: &YamlValue) -> Option<bool> {
    match value {
        YamlValue::Plain(text) => match &**text {
            "true" | "True" | "TRUE" => Some(true),
            "false" | "False" | "FALSE" => Some(false),
            _ => None,
        },
        _ => None,
    }
}

impl YamlNode {
    /// A whole number, if it is one.
    pub(crate) fn whole(&self) -> Option<u64> {
        whole(&self.value, 0, u64::MAX).ok()
    }

    /// A boolean, if it is one.
    pub(crate) fn boolean(&self) -> Option<bool> {
        boolean(&self.value)
    }

    /// The entries of a list, or the one value itself: for fields that take one or several.
    pub(crate) fn each(&self) -> &[YamlNode] {
        match &self.value {
            YamlValue::List(items) => items,
            YamlValue::Null => &[],
            _ => std::slice::from_ref(self),
        }
    }
}
