//! Makes the tree of a parser's events, within bounds.

use std::collections::HashMap;

use granit_parser::{Event, Parser, ScalarStyle, StrInput, Tag};

use super::syntax::{TYPOGRAPHIC_QUOTES, not_a_quote};
use super::{
    MAX_ALIASES, MAX_DEPTH, MAX_ENTRIES, MAX_EVENTS, MAX_SCALAR_BYTES, YamlEntry, YamlNode,
    YamlValue, syntax,
};
use crate::Problem;
use crate::diagnostic::{Diagnostic, Diagnostics, Span};
use crate::source::Source;

/// The most keys of a map that are compared one by one. Nearly every map is smaller and needs no
/// table.
const LINEAR_SEARCH_MAX: usize = 16;

/// Fields whose values are no free text: quotes of a word processor around them are a mistake.
const FIELDS_WITHOUT_QUOTES: [&str; 8] =
    ["algorithm", "key", "limits", "mode", "name", "path", "rate", "rule"];

/// Something that ends the reading.
type FatalDiagnostic = Box<Diagnostic>;

/// A list or map that is not complete yet.
struct OpenCollection {
    span: Span,
    anchor: usize,
    /// Nodes of the whole tree when it began.
    nodes_before: usize,
    /// The deepest nesting below, itself included.
    depth: usize,
    content: OpenContent,
}

enum OpenContent {
    List(Vec<YamlNode>),
    Map {
        entries: Vec<YamlEntry>,
        /// The indices in `entries` of the keys behind the first `LINEAR_SEARCH_MAX`.
        key_index: HashMap<Box<str>, usize>,
        key: Option<(Box<str>, Span)>,
        /// A key that cannot be used; its value is read and forgotten.
        skip_value: bool,
    },
}

impl OpenContent {
    fn len(&self) -> usize {
        match self {
            OpenContent::List(items) => items.len(),
            OpenContent::Map { entries, .. } => entries.len(),
        }
    }
}

/// A finished node that an alias may repeat.
struct AnchoredNode {
    node: YamlNode,
    nodes: usize,
    depth: usize,
}

/// Makes the tree of the events.
pub(super) struct YamlBuilder<'a> {
    source: &'a Source,
    diagnostics: &'a mut Diagnostics,
    /// Bound: `MAX_DEPTH`.
    open: Vec<OpenCollection>,
    /// Bound: by the events. Only anchors that are used cost more than their node.
    anchors: HashMap<usize, AnchoredNode>,
    nodes: usize,
    /// Nodes kept a second time because an alias may want them.
    anchored_nodes: usize,
    aliases: usize,
    root: Option<YamlNode>,
    /// True if a value is missing in the tree that the file has, so that `shape` would report it as
    /// missing there.
    is_incomplete: bool,
}

impl<'a> YamlBuilder<'a> {
    pub(super) fn new(source: &'a Source, diagnostics: &'a mut Diagnostics) -> YamlBuilder<'a> {
        let (open, anchors) = (Vec::new(), HashMap::new());
        YamlBuilder {
            source,
            diagnostics,
            open,
            anchors,
            nodes: 0,
            anchored_nodes: 0,
            aliases: 0,
            root: None,
            is_incomplete: false,
        }
    }

    /// Builds the one document. Returns `None` if it is empty, or if it could not be read: then the
    /// diagnostics say why.
    pub(super) fn build<'t>(mut self, parser: Parser<'t, StrInput<'t>>) -> Option<YamlNode> {
        match self.read(parser) {
            Ok(root) => root,
            Err(stop) => {
                self.diagnostics.push(*stop);
                None
            }
        }
    }

    fn read<'t>(
        &mut self,
        parser: Parser<'t, StrInput<'t>>,
    ) -> Result<Option<YamlNode>, FatalDiagnostic> {
        let mut documents = 0;
        for event in parser {
            let (event, span) =
                event.map_err(|error| syntax::explain(self.source, &error, self.open_bracket()))?;
            let tag = event.tag().map(|tag| (tag.clone(), span.tag_span()));
            let span = self.span(&span);
            if let Some((tag, tag_span)) = tag {
                let tag_span = tag_span.map_or(span, |tag_span| self.span(&tag_span));
                self.check_tag(&tag, tag_span);
            }
            if matches!(event, Event::DocumentStart(..)) {
                documents += 1;
                if documents > 1 {
                    return Err(self.stop(
                        span,
                        Problem::new(
                            "a second document begins here, and a file is one document",
                        )
                        .hint(
                            "remove the `---`, or put the second document into a file of its own",
                        ),
                    ));
                }
            }
            self.event(event, span)?;
        }
        Ok(self.root.take().filter(|_| !self.is_incomplete))
    }

    /// The innermost bracket that is still open.
    fn open_bracket(&self) -> Option<Span> {
        let open = self.open.last()?;
        let bracket = self.source.text()[open.span.start..].starts_with(['[', '{']);
        bracket.then(|| Span { end: open.span.start + 1, ..open.span })
    }

    fn event(&mut self, event: Event<'_>, span: Span) -> Result<(), FatalDiagnostic> {
        match event {
            Event::Scalar(text, style, anchor, _) => {
                if text.len() > MAX_SCALAR_BYTES {
                    let problem = format!("a text is longer than {} KiB", MAX_SCALAR_BYTES >> 10);
                    return Err(self.stop(span, Problem::new(problem)));
                }
                self.count(1, span)?;
                let value = self.scalar(&text, style, span);
                self.finish(YamlNode { span, value }, anchor, self.nodes - 1, 0)?;
            }
            Event::SequenceStart(_, anchor, _) => {
                self.begin(span, anchor, OpenContent::List(Vec::new()))?;
            }
            Event::MappingStart(_, anchor, _) => {
                let (entries, known) = (Vec::new(), HashMap::new());
                self.begin(
                    span,
                    anchor,
                    OpenContent::Map { entries, key_index: known, key: None, skip_value: false },
                )?;
            }
            Event::SequenceEnd | Event::MappingEnd => self.end(span)?,
            Event::Alias(anchor) => self.alias(anchor, span)?,
            Event::UnresolvedAlias(name) => {
                self.is_incomplete = true;
                self.error(
                    span,
                    Problem::new(format!("there is no anchor `&{name}` above"))
                        .hint("put a text that begins with `*` into quotes"),
                );
                self.finish(YamlNode { span, value: YamlValue::Null }, 0, self.nodes, 0)?;
            }
            _ => {}
        }
        Ok(())
    }

    fn begin(
        &mut self,
        span: Span,
        anchor: usize,
        content: OpenContent,
    ) -> Result<(), FatalDiagnostic> {
        self.count(1, span)?;
        if self.open.len() >= MAX_DEPTH {
            return Err(self.stop(span, too_deep()));
        }
        let nodes_before = self.nodes - 1;
        self.open.push(OpenCollection { span, anchor, nodes_before, depth: 1, content });
        Ok(())
    }

    fn end(&mut self, end: Span) -> Result<(), FatalDiagnostic> {
        let open = self.open.pop().expect("the parser ends only what it began");
        let span = Span { end: end.end.max(open.span.end), ..open.span };
        let value = match open.content {
            OpenContent::List(items) => YamlValue::List(items),
            OpenContent::Map { entries, .. } => YamlValue::Map(entries),
        };
        self.finish(YamlNode { span, value }, open.anchor, open.nodes_before, open.depth)
    }

    /// Counts nodes against the budget before they are made.
    fn count(&mut self, nodes: usize, span: Span) -> Result<(), FatalDiagnostic> {
        self.nodes += nodes;
        if self.nodes + self.anchored_nodes <= MAX_EVENTS {
            return Ok(());
        }
        Err(self.stop(
            span,
            match self.aliases + self.anchored_nodes {
                0 => Problem::new(format!("the file has more than {MAX_EVENTS} values")).hint(
                    "split the rules over several files of one directory and name the directory",
                ),
                _ => Problem::new(format!(
                    "the file has more than {MAX_EVENTS} values, counting what its aliases repeat"
                ))
                .hint("nest fewer aliases"),
            },
        ))
    }

    fn alias(&mut self, anchor: usize, span: Span) -> Result<(), FatalDiagnostic> {
        self.aliases += 1;
        if self.aliases > MAX_ALIASES {
            let problem = format!("the file uses more than {MAX_ALIASES} aliases");
            return Err(self.stop(span, Problem::new(problem).hint("write the values out")));
        }
        let Some(anchored) = self.anchors.get(&anchor) else {
            return Err(self.stop(
                span,
                Problem::new("the alias stands inside its own anchor").hint("write the value out"),
            ));
        };
        let (nodes, depth) = (anchored.nodes, anchored.depth);
        self.count(nodes, span)?;
        if self.open.len() + depth > MAX_DEPTH {
            return Err(self.stop(span, too_deep()));
        }
        // The copy has the span of its use; the nodes inside keep the spans where they were
        // written.
        let node = YamlNode { span, ..self.anchors[&anchor].node.clone() };
        self.finish(node, 0, self.nodes - nodes, depth)
    }

    /// Hands a complete node to the list or map around it.
    fn finish(
        &mut self,
        node: YamlNode,
        anchor: usize,
        nodes_before: usize,
        depth: usize,
    ) -> Result<(), FatalDiagnostic> {
        if anchor != 0 {
            // Anchors inside anchors keep their content once each: that is counted, too.
            let nodes = self.nodes - nodes_before;
            self.anchored_nodes += nodes;
            self.count(0, node.span)?;
            self.anchors.insert(anchor, AnchoredNode { node: node.clone(), nodes, depth });
        }
        let Some(open) = self.open.last_mut() else {
            self.root = Some(node);
            return Ok(());
        };
        open.depth = open.depth.max(depth + 1);
        if open.content.len() >= MAX_ENTRIES {
            let problem = format!("a list or map has more than {MAX_ENTRIES} entries");
            return Err(
                self.stop(node.span, Problem::new(problem).hint("split it over several files"))
            );
        }
        let problem = match &mut open.content {
            OpenContent::List(items) => {
                items.push(node);
                None
            }
            OpenContent::Map { entries, key_index: known, key, skip_value } => {
                if *skip_value {
                    *skip_value = false;
                    None
                } else if let Some((key, key_span)) = key.take() {
                    if entries.len() >= LINEAR_SEARCH_MAX {
                        known.insert(key.clone(), entries.len());
                    }
                    entries.push(YamlEntry { key, key_span, node });
                    None
                } else {
                    let problem = take_key(node, entries, known, key);
                    *skip_value = problem.is_some();
                    problem
                }
            }
        };
        if let Some((span, problem, first)) = problem {
            let diagnostic = Diagnostic::error(self.source, span, problem);
            // The value of a second key of one name is not missing: the first one has one.
            self.is_incomplete |= first.is_none();
            self.diagnostics.push(match first {
                Some(first) => diagnostic.also(self.source, first, "it was first given here"),
                None => diagnostic,
            });
        }
        Ok(())
    }

    /// Reports tags other than those of the core types, because rules make no use of them.
    fn check_tag(&mut self, tag: &Tag, span: Span) {
        let known = ["str", "int", "float", "bool", "null", "seq", "map"];
        if !tag.core_suffix().is_some_and(|suffix| known.contains(&suffix)) {
            let problem = format!("the tag `{}` has no meaning here", tag.original());
            self.error(
                span,
                Problem::new(problem)
                    .hint("remove it, or put a text that begins with `!` into quotes"),
            );
        }
    }

    /// The value of a text. Without the quotes of a word processor, where only a mistake has them, so that they are the only
    /// one that is reported.
    fn scalar(&mut self, text: &str, style: ScalarStyle, span: Span) -> YamlValue {
        let mut ends = text.chars();
        match (ends.next(), ends.next_back()) {
            (Some(first), Some(last))
                if style == ScalarStyle::Plain
                    && [first, last].iter().all(|end| TYPOGRAPHIC_QUOTES.contains(end))
                    && self.expects_word() =>
            {
                self.error(span, not_a_quote(first));
                YamlValue::Quoted(text.trim_matches(TYPOGRAPHIC_QUOTES).into())
            }
            _ => scalar(text, style),
        }
    }

    /// Returns true if the next text is the name of a field, or its value is in a form of its own, such as a key or a rate.
    /// Others may be words of any language, and their quotes are meant.
    fn expects_word(&self) -> bool {
        let maps =
            self.open.iter().rev().enumerate().find_map(|(above, open)| match &open.content {
                OpenContent::List(_) => None,
                OpenContent::Map { key, .. } => Some((above, key)),
            });
        match maps {
            Some((_, Some((key, _)))) => FIELDS_WITHOUT_QUOTES.contains(&&**key),
            Some((above, None)) => above == 0,
            None => false,
        }
    }

    fn error(&mut self, span: Span, problem: Problem) {
        self.diagnostics.push(Diagnostic::error(self.source, span, problem));
    }

    fn stop(&self, span: Span, problem: Problem) -> FatalDiagnostic {
        Diagnostic::error(self.source, span, problem).into()
    }

    fn span(&self, span: &granit_parser::Span) -> Span {
        syntax::span(self.source, &span.start, &span.end)
    }
}

/// Keeps a key for the value that follows, or returns the problem with it.
fn take_key(
    node: YamlNode,
    entries: &[YamlEntry],
    known: &HashMap<Box<str>, usize>,
    key: &mut Option<(Box<str>, Span)>,
) -> Option<(Span, Problem, Option<Span>)> {
    let Some(text) = node.text() else {
        let problem = Problem::new("a key must be a text")
            .hint("put a key that begins with `{` or `[` into quotes");
        return Some((node.span, problem, None));
    };
    if text == "<<" {
        let problem = Problem::new("merge keys (`<<`) are not supported")
            .hint("write the fields out, or share a whole value with an alias");
        return Some((node.span, problem, None));
    }
    let among_first = entries.iter().take(LINEAR_SEARCH_MAX).position(|entry| &*entry.key == text);
    if let Some(first) = among_first.or_else(|| known.get(text).copied()) {
        let problem = Problem::new(format!("`{text}` is given twice")).hint("remove one of them");
        return Some((node.span, problem, Some(entries[first].key_span)));
    }
    *key = Some((text.into(), node.span));
    None
}

pub(super) fn too_deep() -> Problem {
    Problem::new(format!("lists and maps nest more than {MAX_DEPTH} deep"))
}

fn scalar(text: &str, style: ScalarStyle) -> YamlValue {
    match (style, text) {
        (ScalarStyle::Plain, "" | "~" | "null" | "Null" | "NULL") => YamlValue::Null,
        (ScalarStyle::Plain, text) => YamlValue::Plain(text.into()),
        (_, text) => YamlValue::Quoted(text.into()),
    }
}
