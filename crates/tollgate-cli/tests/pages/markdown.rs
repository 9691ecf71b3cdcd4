//! Pages as lists of fenced blocks with the markers above them.

/// Languages of blocks that hold commands.
const COMMAND_LANGUAGES: [&str; 4] = ["sh", "bash", "shell", "console"];
/// Languages of blocks that may show output.
const OUTPUT_LANGUAGES: [&str; 4] = ["text", "json", "http", ""];

/// Comments of this name are for another test.
const OTHER_COMMENTS: [&str; 1] = ["table"];

/// An HTML comment directly above a block; readers of the rendered page do not see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum BlockMarker {
    /// `<!-- not run: REASON -->`: the block cannot be run in a test.
    NotRun(String),
    /// `<!-- run by: TEST -->`: a test of this name runs the same commands.
    RunBy(String),
    /// `<!-- before: COMMANDS -->`: commands that prepare the next block.
    Before(String),
    /// `<!-- with: application on PORT -->` or `<!-- with: redis on PORT -->`.
    With(String),
    /// `<!-- file: NAME -->`: the block is the content of this file.
    File(String),
    /// `<!-- in the log -->`: each line of the block is in the log of a server of the page.
    InTheLog,
    /// `<!-- not rules: REASON -->`: the YAML is no part of a rules file.
    NotRules(String),
    /// `<!-- illustration -->`: the block after commands is not their output.
    Illustration,
}

/// A fenced block.
#[derive(Clone, Debug)]
pub(super) struct PageBlock {
    pub(super) language: String,
    /// Line number of the first line inside the fence.
    pub(super) line: usize,
    pub(super) text: String,
    pub(super) markers: Vec<BlockMarker>,
    /// True if a heading stands between this block and the one before.
    pub(super) after_heading: bool,
}

impl PageBlock {
    /// Commands that the page does not show.
    pub(super) fn hidden(commands: &str, line: usize) -> PageBlock {
        let [language, text] = ["sh", commands].map(String::from);
        PageBlock { language, line, text, markers: Vec::new(), after_heading: false }
    }

    pub(super) fn has_commands(&self) -> bool {
        COMMAND_LANGUAGES.contains(&self.language.as_str())
    }

    /// The marker that excuses the block from being run here.
    pub(super) fn excuse(&self) -> Option<&BlockMarker> {
        let excuses = |marker: &&BlockMarker| {
            matches!(marker, BlockMarker::NotRun(_) | BlockMarker::RunBy(_))
        };
        self.markers.iter().find(excuses)
    }

    /// The name of the file that this block is.
    pub(super) fn file_name(&self) -> Option<&str> {
        self.markers.iter().find_map(|marker| match marker {
            BlockMarker::File(name) => Some(name.as_str()),
            _ => None,
        })
    }

    /// True if this block, which follows one with commands, shows their output.
    pub(super) fn is_output(&self) -> bool {
        let other = |marker: &BlockMarker| {
            matches!(marker, BlockMarker::Illustration | BlockMarker::InTheLog)
        };
        let named = self.file_name().is_some() || self.markers.iter().any(other);
        OUTPUT_LANGUAGES.contains(&self.language.as_str()) && !self.after_heading && !named
    }
}

/// Reads the blocks of a page. `Err` names the line of an unknown marker or of an unclosed fence.
pub(super) fn blocks(page: &str) -> Result<Vec<PageBlock>, String> {
    let mut blocks = Vec::new();
    let mut markers = Vec::new();
    let mut after_heading = false;
    let mut lines = page.lines().zip(1..);
    while let Some((line, number)) = lines.next() {
        let trimmed = line.trim_start();
        if let Some(language) = trimmed.strip_prefix("```") {
            let indent = line.len() - trimmed.len();
            let mut text = String::new();
            loop {
                let Some((inside, _)) = lines.next() else {
                    return Err(format!("line {number}: the block has no end"));
                };
                if inside.trim() == "```" {
                    break;
                }
                let spaces = inside.len() - inside.trim_start().len();
                text += &inside[spaces.min(indent)..];
                text.push('\n');
            }
            let language = language.trim().to_string();
            let markers = std::mem::take(&mut markers);
            blocks.push(PageBlock { language, line: number + 1, text, markers, after_heading });
            after_heading = false;
        } else if let Some(comment) = trimmed.strip_prefix("<!--") {
            let mut comment = comment.to_string();
            while !comment.trim_end().ends_with("-->") {
                let Some((next, _)) = lines.next() else {
                    return Err(format!("line {number}: the comment has no end"));
                };
                comment = format!("{comment}\n{next}");
            }
            let comment = comment.trim_end().trim_end_matches("-->").trim();
            markers.extend(marker(comment).map_err(|error| format!("line {number}: {error}"))?);
        } else if !trimmed.is_empty() {
            after_heading |= trimmed.starts_with('#');
            if !markers.is_empty() {
                return Err(format!("line {number}: a marker stands directly above its block"));
            }
        }
    }
    Ok(blocks)
}

/// Reads a comment; `None` if it is not for the runner. Those begin with a lower-case letter.
fn marker(comment: &str) -> Result<Option<BlockMarker>, String> {
    let (name, value) = comment.split_once(':').unwrap_or((comment, ""));
    let value = value.trim().to_string();
    if value.is_empty() && name != "in the log" && name != "illustration" {
        let other = comment.starts_with(|first: char| !first.is_lowercase());
        return if other { Ok(None) } else { Err(format!("`{comment}` says nothing")) };
    }
    Ok(Some(match name {
        "not run" => BlockMarker::NotRun(value),
        "not rules" => BlockMarker::NotRules(value),
        "run by" => BlockMarker::RunBy(value),
        "before" => BlockMarker::Before(value),
        "with" => BlockMarker::With(value),
        "file" => BlockMarker::File(value),
        "in the log" => BlockMarker::InTheLog,
        "illustration" => BlockMarker::Illustration,
        _ if name.starts_with(|first: char| !first.is_lowercase()) => return Ok(None),
        _ if OTHER_COMMENTS.contains(&name) => return Ok(None),
        _ => return Err(format!("there is no marker `{name}`")),
    }))
}

#[test]
fn blocks_have_their_language_their_line_and_their_markers() {
    let page = "# A\n\n<!-- NUMBERS: begin. -->\n<!-- before: cp a\n  b -->\n```sh\nls\n```\n\nIt prints\n\n  ```text\n  x\n   y\n  ```\n## B\n```\nz\n```\n";
    let found = blocks(page).expect("blocks");
    let seen: Vec<_> = found
        .iter()
        .map(|block| (block.language.as_str(), block.line, block.text.as_str(), block.is_output()))
        .collect();
    assert_eq!(
        seen,
        [("sh", 7, "ls\n", false), ("text", 13, "x\n y\n", true), ("", 18, "z\n", false)]
    );
    assert_eq!(found[0].markers, [BlockMarker::Before("cp a\n  b".into())]);
    for (page, want) in [
        ("```sh\nls\n", "line 1: the block has no end"),
        ("<!-- not run -->\n```sh\n```\n", "line 1: `not run` says nothing"),
        ("<!-- not rum: x -->\n```sh\n```\n", "line 1: there is no marker `not rum`"),
        ("<!-- not run: x -->\ntext\n", "line 2: a marker stands directly above its block"),
    ] {
        assert_eq!(blocks(page).err().as_deref(), Some(want), "{page}");
    }
}
