//! Every command of README, guides and reference is run, and its output compared with the one shown.
//!
//! A page is one session: a temporary folder with a copy of `examples/`, where `tollgate` is the program under test. Each
//! block of commands is followed by its output (a block marked `text`, `json` or `http`, or unmarked, before the next
//! heading), or prints nothing. In a block with `$ `, commands and output alternate. `…` and `...` match anything, see
//! [`compare`].
//!
//! - `tollgate serve`, with or without `&`, runs in the background until the page starts another server on the same
//!   port; the next command runs when it is ready. Alone in a block, its output are the lines until then.
//! - Ports stand for free ones. `0.0.0.0` stands for loopback, some folders of the system for folders of the session,
//!   and `pidof tollgate` finds the servers of the page.
//! - Comments above a block tell what readers know: [`markdown::BlockMarker`]. CONTRIBUTING.md lists them.

mod commands;
mod compare;
mod links;
mod markdown;
mod mistakes;
mod rules_blocks;
mod session;
mod shell;
mod tables;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use commands::PageCommand;
use markdown::{BlockMarker, PageBlock};
use session::PageSession;

/// Makes a test of each page, and the list of all.
macro_rules! pages {
    ($($page:literal => $case:ident),+ $(,)?) => {
        const PAGES: &[&str] = &[$($page),+];

        mod is_true {
            $(
                #[test]
                fn $case() {
                    super::run_page($page);
                }
            )+
        }
    };
}

pages! {
    "README.md" => readme,
    "crates/tollgate-cli/README.md" => readme_of_the_command,
    "docs/guides/choosing-an-algorithm.md" => guides_choosing_an_algorithm,
    "docs/guides/dashboard.md" => guides_dashboard,
    "docs/guides/gateway.md" => guides_gateway,
    "docs/concepts/mental-models.md" => concepts_mental_models,
    "docs/concepts/shared-state.md" => concepts_shared_state,
    "docs/guides/identity.md" => guides_identity,
    "docs/guides/monitoring.md" => guides_monitoring,
    "docs/guides/redis-protocol.md" => guides_redis_protocol,
    "docs/guides/rules.md" => guides_rules,
    "docs/guides/trying-rules.md" => guides_trying_rules,
    "docs/guides/running.md" => guides_running,
    "docs/guides/tls.md" => guides_tls,
    "docs/guides/operating-keys.md" => guides_operating_keys,
    "docs/guides/explain.md" => guides_explain,
    "docs/guides/reloading.md" => guides_reloading,
    "docs/reference/admin.md" => reference_admin,
    "docs/reference/command-line.md" => reference_command_line,
    "docs/reference/http.md" => reference_http,
    "examples/gateway/README.md" => examples_gateway,
    "docs/guides/envoy.md" => guides_envoy,
    "docs/guides/load-testing.md" => guides_load_testing,
    "examples/scenarios/README.md" => examples_scenarios,
}

/// The root of the repository.
fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the repository")
}

fn blocks_of(page: &str) -> Vec<PageBlock> {
    let text = fs::read_to_string(repository().join(page)).expect(page);
    markdown::blocks(&text).unwrap_or_else(|error| panic!("{page}: {error}"))
}

/// Runs a page and reports everything that differs.
fn run_page(page: &str) {
    let problems = problems_of(&blocks_of(page)).unwrap_or_else(|error| panic!("{page}: {error}"));
    let told = |(line, problem)| format!("{page}:{line}: {problem}\n");
    let problems: String = problems.into_iter().map(told).collect();
    assert!(problems.is_empty(), "\n{problems}");
}

/// Runs blocks as one session. `Err` if the session cannot start.
fn problems_of(blocks: &[PageBlock]) -> Result<PageProblems, String> {
    let markers = blocks.iter().flat_map(|block| &block.markers);
    let peers = markers.filter_map(|marker| match marker {
        BlockMarker::With(peer) => Some(peer.as_str()),
        _ => None,
    });
    let mut session = PageSession::start(peers)?;
    let mut problems = Vec::new();
    for (index, block) in blocks.iter().enumerate() {
        let output = blocks.get(index + 1).filter(|next| next.is_output());
        problems.extend(run_block(&mut session, block, output).err().into_iter().flatten());
    }
    Ok(problems)
}

/// Problems with the lines of the page.
type PageProblems = Vec<(usize, String)>;

fn run_block(
    session: &mut PageSession,
    block: &PageBlock,
    output: Option<&PageBlock>,
) -> Result<(), PageProblems> {
    let here = |problem: String| vec![(block.line, problem)];
    for marker in &block.markers {
        match marker {
            BlockMarker::Before(commands) => {
                prepare(session, &PageBlock::hidden(commands, block.line))?;
            }
            BlockMarker::File(name) => session.write_file(name, &block.text).map_err(here)?,
            BlockMarker::InTheLog => {
                for (line, number) in block.text.lines().zip(block.line..) {
                    session.wait_for_log(line).map_err(|problem| vec![(number, problem)])?;
                }
            }
            _ => {}
        }
    }
    if !block.has_commands() || block.excuse().is_some() {
        return Ok(());
    }
    let commands = commands::commands(block);
    let mut all = String::new();
    for command in &commands {
        let exact = !session.has_served();
        let ran = session.run(&command.text, commands.len() == 1 && output.is_some());
        let ran = ran.map_err(|problem| {
            vec![(command.line, told(command, &format!("{problem}\nbefore it:\n{all}")))]
        })?;
        if let Some(shown) = &command.shown {
            compare::compare(shown, &ran.text, !exact)
                .map_err(|problem| vec![(command.line, told(command, &problem))])?;
        } else if ran.status != 0 && ran.text.is_empty() {
            let problem = format!("fails with status {} and says nothing", ran.status);
            return Err(vec![(command.line, told(command, &problem))]);
        } else {
            all += &ran.text;
        }
    }
    if commands.iter().any(|command| command.shown.is_some()) {
        return Ok(());
    }
    let shown = output.map_or("", |output| output.text.as_str());
    let line = output.map_or(block.line, |output| output.line);
    compare::compare(shown, &all, session.has_served()).map_err(|difference| {
        let commands: Vec<&str> = commands.iter().map(|command| command.text.as_str()).collect();
        vec![(line, format!("{}\n{difference}", commands.join("\n")))]
    })
}

fn told(command: &PageCommand, problem: &str) -> String {
    format!("{}\n{problem}", command.text)
}

/// Runs commands that the page does not show; they must succeed.
fn prepare(session: &mut PageSession, hidden: &PageBlock) -> Result<(), PageProblems> {
    for command in commands::commands(hidden) {
        let place = |problem: String| vec![(command.line, told(&command, &problem))];
        let ran = session.run(&command.text, false).map_err(place)?;
        if ran.status != 0 {
            return Err(place(format!("fails with status {}\n{}", ran.status, ran.text)));
        }
    }
    Ok(())
}

/// All pages with blocks: in the root, in `docs/`, and beside examples and crates.
fn all_pages() -> BTreeSet<String> {
    fn collect(folder: &Path, depth: usize, pages: &mut BTreeSet<PathBuf>) {
        for entry in fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            let hidden =
                path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
            if path.is_dir() && depth > 0 && !hidden {
                collect(&path, depth - 1, pages);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                pages.insert(path);
            }
        }
    }
    let root = repository();
    let mut pages = BTreeSet::new();
    collect(&root, 0, &mut pages);
    for folder in ["docs", "examples", "crates", "testkit"] {
        collect(&root.join(folder), 2, &mut pages);
    }
    let name = |page: PathBuf| page.strip_prefix(&root).expect("inside").display().to_string();
    pages.into_iter().map(name).collect()
}

/// A page with a command is run, or each block with commands says why not.
#[test]
fn every_page_with_commands_is_run() {
    let all = all_pages();
    assert!(all.len() > 40, "{all:?}");
    for page in PAGES.iter() {
        assert!(all.contains(*page), "{page} does not exist");
    }
    for page in &all {
        let blocks = blocks_of(page);
        let run = blocks.iter().any(|block| block.has_commands() && block.excuse().is_none());
        let listed = PAGES.iter().filter(|listed| *listed == page).count();
        assert_eq!(listed, usize::from(run), "{page}: list it above if it has commands, once");
    }
}

/// The tests that `<!-- run by: TEST -->` names exist.
#[test]
fn every_test_that_a_page_names_exists() {
    for page in all_pages() {
        for block in blocks_of(&page) {
            if let Some(BlockMarker::RunBy(test)) = block.excuse() {
                let place = format!("{page}:{}", block.line);
                assert!(test_exists(test), "{place}: there is no test `{test}`");
            }
        }
    }
}

/// Looks up `module::file::name` among the tests of this program.
fn test_exists(test: &str) -> bool {
    let Some((modules, name)) = test.rsplit_once("::") else { return false };
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let path = tests.join(modules.replace("::", "/"));
    let files = [path.with_extension("rs"), path.join("mod.rs")];
    let text = files.iter().find_map(|file| fs::read_to_string(file).ok()).unwrap_or_default();
    let (before, attribute) = (format!("fn {name}()"), "#[test]");
    text.contains(attribute) && text.contains(&before)
}

#[test]
fn tests_are_found_by_their_path() {
    assert!(test_exists("pages::tests_are_found_by_their_path"));
    assert!(
        !test_exists("pages::no_such_test") && !test_exists("pages") && !test_exists("no::test")
    );
}
