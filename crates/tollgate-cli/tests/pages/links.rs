//! Links of the pages lead to files and headings that exist, and the commands that sentences mention have their flags.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use regex::Regex;

use super::{all_pages, repository};
use crate::harness::run;

/// The text of a page without its fenced blocks.
fn prose(page: &str) -> String {
    let text = fs::read_to_string(repository().join(page)).expect(page);
    let (mut prose, mut fenced) = (String::new(), false);
    for line in text.lines() {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        if !fence && !fenced {
            prose += &format!("{line}\n");
        }
    }
    prose
}

/// The name by which a link finds a heading: lower case, dashes for spaces, without most punctuation.
fn anchor(heading: &str) -> String {
    let link = Regex::new(r"\[([^\]]*)\]\([^)]*\)").expect("valid");
    let text = link.replace_all(heading, "$1").trim().to_lowercase();
    let kept = text.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

fn anchors(page: &str) -> BTreeSet<String> {
    let headings = prose(page);
    let headings = headings.lines().filter_map(|line| {
        line.trim_start_matches('#').strip_prefix(' ').filter(|_| line.starts_with('#'))
    });
    headings.map(anchor).collect()
}

#[test]
fn links_lead_somewhere() {
    let link = Regex::new(r#"(?:\]\(|src="|srcset=")([^)\s"]+)"#).expect("valid");
    let root = repository();
    let mut problems = Vec::new();
    for page in all_pages() {
        let folder = root.join(&page).parent().expect("a folder").to_owned();
        for found in link.captures_iter(&prose(&page)) {
            let target = &found[1];
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            let (file, heading) = target.split_once('#').unwrap_or((target, ""));
            let path = if file.is_empty() { root.join(&page) } else { folder.join(file) };
            let Ok(path) = path.canonicalize() else {
                problems.push(format!("{page}: {target}: there is no such file"));
                continue;
            };
            let name =
                path.strip_prefix(&root).map_or(Path::new(""), |name| name).display().to_string();
            if !heading.is_empty() && name.ends_with(".md") && !anchors(&name).contains(heading) {
                problems.push(format!("{page}: {target}: there is no such heading"));
            }
        }
    }
    assert!(problems.is_empty(), "{problems:#?}");
}

#[test]
fn the_index_has_every_page() {
    let index = fs::read_to_string(repository().join("docs/README.md")).expect("the index");
    for page in all_pages() {
        if let Some(page) = page.strip_prefix("docs/").filter(|page| *page != "README.md") {
            assert!(index.contains(&format!("]({page})")), "docs/README.md has no link to {page}");
        }
    }
}

/// Help texts by command.
type HelpTexts = BTreeMap<String, String>;

/// Returns the flags in the text of a command, each with true if its help has it.
fn flags_of(command: &str, helps: &mut HelpTexts) -> Vec<(String, bool)> {
    let flag = Regex::new(r"(?:^|\s)(--[a-z][a-z0-9-]*)").expect("valid");
    let mut words = command.split_whitespace();
    let name = words.next().unwrap_or_default();
    let is_action = |word: &&str| name == "keys" && word.chars().all(char::is_lowercase);
    let action = words.next().filter(is_action);
    let args: Vec<&str> = [name].into_iter().chain(action).chain(["--help"]).collect();
    let known = |flag: &str, help: &str| {
        help.split(|c: char| !c.is_alphanumeric() && c != '-').any(|word| word == flag)
    };
    let found = flag.captures_iter(command).map(|found| {
        let help = helps.entry(args.join(" ")).or_insert_with(|| run(&args).stdout);
        (found[1].to_string(), known(&found[1], help))
    });
    found.collect()
}

/// `tollgate serve --limit`, in a sentence or a table, is a command with this flag.
#[test]
fn commands_in_sentences_have_their_flags() {
    let commands = "serve|check|simulate|ask|keys|schema|bench|top";
    let span = format!("`(?:tollgate )?((?:{commands})\\b[^`]*)`");
    let span = Regex::new(&span).expect("valid");
    let (mut checked, mut problems) = (0, Vec::new());
    let mut helps = HelpTexts::new();
    for page in all_pages() {
        for found in span.captures_iter(&prose(&page).replace('\n', " ")) {
            for (flag, known) in flags_of(&found[1], &mut helps) {
                checked += 1;
                if !known {
                    problems.push(format!("{page}: `{}`: there is no {flag}", &found[1]));
                }
            }
        }
    }
    assert!(problems.is_empty(), "{problems:#?}");
    assert!(checked > 10, "{checked}");
    let found = flags_of("keys show login ip=192.0.2.1 --json --lomit 5", &mut helps);
    assert_eq!(found, [("--json".to_string(), true), ("--lomit".to_string(), false)]);
}
