//! What a rules file may contain: one table of objects and fields, in `table` and `rule_table`.
//!
//! The reader below and the JSON Schema of `schema` walk the same table, so that a field cannot be
//! in one and not in the other. The reader looks at form: known fields, the right kind of value,
//! nothing required missing. What values mean, `compile` finds out; whatever this reader has
//! reported, `compile` passes over in silence.

mod import_table;
mod kinds;
mod rule_table;
mod table;

use crate::Problem;
use crate::diagnostic::{Diagnostic, Diagnostics, MAX_SHOWN, Span};
use crate::source::Source;
use crate::suggest::suggest;
use crate::yaml::{Entry, Node, Value};

pub(crate) use import_table::IMPORT;
pub(crate) use table::FILE;

/// A map with fixed fields.
pub(crate) struct Object {
    /// Its name in the schema.
    pub(crate) id: &'static str,
    /// What people call it, with its article.
    pub(crate) noun: &'static str,
    /// One sentence.
    pub(crate) doc: &'static str,
    pub(crate) fields: &'static [Field],
    /// Names that the writer chooses, beside the fields.
    pub(crate) others: Option<&'static Others>,
    /// If exactly one field is to be given: what to write.
    pub(crate) one_field: Option<&'static str>,
}

/// One field of an object.
pub(crate) struct Field {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) required: bool,
    /// One sentence.
    pub(crate) doc: &'static str,
    /// A line that can be pasted.
    pub(crate) example: &'static str,
}

/// Names that the writer chooses, and what stands behind them.
pub(crate) struct Others {
    /// What the names are.
    pub(crate) doc: &'static str,
    pub(crate) kind: Kind,
    pub(crate) example: &'static str,
    /// What all of them fit, for the schema. `compile` says more about those that do not.
    pub(crate) pattern: Option<&'static str>,
}

/// What a value may be.
pub(crate) enum Kind {
    /// Any scalar; the text says what it is, with its article. Its meaning is checked later.
    Text(&'static str),
    /// The same of which the schema says more.
    Spelled(&'static str, Spelling),
    /// A decimal number; its meaning is checked later.
    Decimal(&'static str),
    /// A whole number from, to.
    Whole(u64, u64),
    Boolean,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A list of what the text says.
    List(&'static str, &'static Kind),
    /// A list that has from one to so many. Its length is checked later.
    Several(&'static str, &'static Kind, usize),
    Object(&'static Object),
    /// Whatever somebody writes.
    Any,
    /// One of these, told apart by their form: scalar, list or map.
    Either(&'static [Kind]),
}

/// What a text fits that means anything, as far as a regular expression can tell.
#[derive(Clone, Copy)]
pub(crate) enum Spelling {
    /// Also what YAML takes for a number or a boolean without quotes.
    Loose(&'static str),
    /// Never that.
    Strict(&'static str),
}

/// How a value is written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Scalar,
    List,
    Map,
}

impl Kind {
    fn has_form(&self, form: Form) -> bool {
        match self {
            Kind::Text(_)
            | Kind::Spelled(..)
            | Kind::Decimal(_)
            | Kind::Whole(..)
            | Kind::Boolean
            | Kind::Choice(_) => form == Form::Scalar,
            Kind::List(..) | Kind::Several(..) => form == Form::List,
            Kind::Object(_) => form == Form::Map,
            Kind::Any => true,
            Kind::Either(kinds) => kinds.iter().any(|kind| kind.has_form(form)),
        }
    }

    /// What it is, for a message.
    fn describe(&self) -> String {
        match self {
            Kind::Text(what) | Kind::Spelled(what, _) | Kind::Decimal(what) => (*what).into(),
            Kind::Whole(..) => "a whole number".into(),
            Kind::Boolean => "`true` or `false`".into(),
            Kind::Any => "anything".into(),
            Kind::Choice(words) => {
                words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(" or ")
            }
            Kind::List(what, _) | Kind::Several(what, ..) => format!("a list of {what}"),
            Kind::Object(object) if object.fields.is_empty() => format!("a map, {}", object.noun),
            Kind::Object(object) => format!("a map with the fields of {}", object.noun),
            Kind::Either(kinds) => {
                kinds.iter().map(Kind::describe).collect::<Vec<_>>().join(", or ")
            }
        }
    }
}

/// Reports everything in a tree that does not have the form of a rules file, which is this.
pub(crate) fn check_file(
    source: &Source,
    root: &Node,
    form: &'static Object,
    diagnostics: &mut Diagnostics,
) {
    let nulls_are_left_out = std::ptr::eq(form, &IMPORT);
    Checker { source, diagnostics, nulls_are_left_out }.object(root, form);
}

struct Checker<'a> {
    source: &'a Source,
    diagnostics: &'a mut Diagnostics,
    /// A field without a value is as if it were not there, as the reference server has it; that is
    /// worth a warning.
    nulls_are_left_out: bool,
}

/// A value that is looked at: what it is called, and an example of one.
#[derive(Clone, Copy)]
struct Named<'a> {
    name: &'a str,
    example: &'a str,
    required: bool,
}

impl Object {
    fn field(&self, name: &str) -> Option<&'static Field> {
        self.fields.iter().find(|field| *field.name == *name)
    }

    /// The field that a misspelt name was meant to be.
    fn suggest(&self, name: &str) -> Option<&'static str> {
        suggest(name, self.fields.iter().map(|field| field.name))
    }
}

impl Checker<'_> {
    fn object(&mut self, node: &Node, object: &'static Object) {
        for entry in node.entries() {
            if let Some(Field { kind, name, example, required, .. }) = object.field(&entry.key) {
                let named = Named { name, example, required: *required };
                self.value(&entry.node, entry.key_span, kind, named);
            } else if let Some(others) = object.others {
                let named = Named { name: &entry.key, example: others.example, required: false };
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
            // Under a misspelt name it is there.
            let meant = |entry: &Entry| {
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

    fn unknown_field(&mut self, key: &str, span: Span, object: &Object) {
        let names: Vec<&str> = object.fields.iter().map(|field| field.name).collect();
        // Nobody sees the hundredth, and comparing takes time.
        let seen = self.diagnostics.len() < MAX_SHOWN;
        let hint = match (seen.then(|| object.suggest(key)).flatten(), &names[..]) {
            (Some(name), _) => format!("did you mean `{name}`?"),
            (None, [only]) => format!("its only field is `{only}`"),
            (None, all) => format!("it has the fields {}", all.join(", ")),
        };
        let problem = format!("there is no field `{key}` in {}", object.noun);
        self.error(span, Problem::new(problem).hint(hint));
    }

    fn value(&mut self, node: &Node, key_span: Span, kind: &'static Kind, named: Named<'_>) {
        let form = match &node.value {
            Value::Null if matches!(kind, Kind::Any) => return,
            Value::Null => {
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
            Value::Plain(_) | Value::Quoted(_) => Form::Scalar,
            Value::List(_) => Form::List,
            Value::Map(_) => Form::Map,
        };
        if !kind.has_form(form) {
            let is = match form {
                Form::Scalar => "a single value",
                Form::List => "a list",
                Form::Map => "a map",
            };
            let problem = format!("`{}` is {is}; it should be {}", named.name, kind.describe());
            let problem = Problem::new(problem).hint(format!("write `{}`", named.example));
            return self.error(node.span, problem);
        }
        match kind {
            Kind::Text(_) | Kind::Spelled(..) | Kind::Decimal(_) | Kind::Any => {}
            Kind::Whole(from, to) => self.whole(node, *from, *to, named),
            Kind::Boolean => self.boolean(node, named),
            Kind::Choice(words) => self.choice(node, words, named),
            Kind::List(_, kind) | Kind::Several(_, kind, _) => {
                for item in node.items() {
                    self.value(item, item.span, kind, named);
                }
            }
            Kind::Object(object) => self.object(node, object),
            Kind::Either(kinds) => {
                let fitting = kinds.iter().find(|kind| kind.has_form(form));
                let kind = fitting.expect("one of them has this form");
                self.value(node, key_span, kind, named);
            }
        }
    }

    fn whole(&mut self, node: &Node, from: u64, to: u64, named: Named<'_>) {
        let Err(what) = whole(&node.value, from, to) else { return };
        if let Some(hint) = node.text().and_then(|text| octal_hint(named.name, text)) {
            let problem = format!("`{}` {what}", named.name);
            return self.error(node.span, Problem::new(problem).hint(hint));
        }
        let problem = Problem::new(format!("`{}` {what}", named.name));
        // The example of a field that can also be a map would not show a number.
        let hint = match named.example.contains('{') {
            true => format!("write `{}: {}`", named.name, from.max(1)),
            false => format!("write `{}`", named.example),
        };
        self.error(node.span, problem.hint(hint));
    }

    fn boolean(&mut self, node: &Node, named: Named<'_>) {
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

    fn choice(&mut self, node: &Node, words: &'static [&'static str], named: Named<'_>) {
        let text = node.text().unwrap_or_default();
        if words.contains(&text) {
            return;
        }
        let all = words.join(", ");
        let hint = match suggest(text, words.iter().copied()) {
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
fn whole(value: &Value, from: u64, to: u64) -> Result<u64, String> {
    let Value::Plain(text) = value else {
        return Err("is a text in quotes; it should be a whole number without them".into());
    };
    let digits = text.strip_prefix('-').unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!("is {text:?}; it should be a whole number"));
    }
    if has_leading_zero(digits) {
        return Err(format!(
            "is {text}, and a number with a 0 in front is octal to readers of YAML 1.1"
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

/// Whether YAML 1.1, which the reference server and many tools read, could take digits for an octal number.
pub(crate) fn has_leading_zero(digits: &str) -> bool {
    digits.len() > 1 && digits.starts_with('0')
}

/// What to write for a number with a zero in front.
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

/// What the core schema of YAML takes for a boolean.
fn boolean(value: &Value) -> Option<bool> {
    match value {
        Value::Plain(text) => match &**text {
            "true" | "True" | "TRUE" => Some(true),
            "false" | "False" | "FALSE" => Some(false),
            _ => None,
        },
        _ => None,
    }
}

impl Node {
    /// A whole number, if it is one.
    pub(crate) fn whole(&self) -> Option<u64> {
        whole(&self.value, 0, u64::MAX).ok()
    }

    /// A boolean, if it is one.
    pub(crate) fn boolean(&self) -> Option<bool> {
        boolean(&self.value)
    }

    /// The entries of a list, or the one value itself: for fields that take one or several.
    pub(crate) fn each(&self) -> &[Node] {
        match &self.value {
            Value::List(items) => items,
            Value::Null => &[],
            _ => std::slice::from_ref(self),
        }
    }
}
