//! `cargo xtask pictures`: draws the pictures of README and guides, as `docs/pictures/pictures.txt` lists them.
//!
//! A test of `tollgate-cli` compares the pictures with the same list, byte for byte.

use crate::invocation::Invocation;
use crate::{packages, peers};

/// The list of pictures.
const LIST: &str = "docs/pictures/pictures.txt";

/// Draws all pictures. Returns true if that succeeded.
pub(crate) fn run() -> bool {
    let path = crate::root().join(LIST);
    let list = match std::fs::read_to_string(&path) {
        Ok(list) => list,
        Err(error) => {
            eprintln!("cannot read {LIST}: {error}");
            return false;
        }
    };
    let pictures: Vec<(&str, &str)> = list.lines().filter_map(picture).collect();
    let built = Invocation::new("cargo build --package tollgate-cli --all-features").run();
    let drawn = built && pictures.iter().all(|(name, options)| draw(name, options));
    if drawn {
        println!("{} pictures in docs/pictures/", pictures.len());
    }
    drawn
}

/// Draws the pictures of the dashboard in a browser, with the program as users get it. Returns true if that succeeded.
pub(crate) fn run_dashboard() -> bool {
    let program = format!("{}/tollgate", crate::target_directory("release"));
    let modules = crate::root().join(crate::target_directory("peers/node/node_modules"));
    let drawing = Invocation::new("node crates/tollgate-cli/tests/dashboard/pictures.js")
        .with([program.as_str(), "docs/pictures"])
        .env("NODE_PATH", modules.display().to_string());
    packages::install()
        && peers::install()
        && Invocation::new("cargo build --release --package tollgate-cli --all-features").run()
        && drawing.run()
}

/// The name and the options of a line; `None` for comments and blank lines.
fn picture(line: &str) -> Option<(&str, &str)> {
    let line = line.trim();
    if line.starts_with('#') {
        return None;
    }
    line.split_once(' ').map(|(name, options)| (name, options.trim()))
}

fn draw(name: &str, options: &str) -> bool {
    let program = format!("{}/tollgate", crate::target_directory("debug"));
    let (options, title) = options.split_once('|').unwrap_or((options, ""));
    let drawing = Invocation::new(&format!("{program} simulate {options}"))
        .with(["--svg", &format!("docs/pictures/{name}.svg")]);
    let title = Some(title.trim()).filter(|title| !title.is_empty());
    drawing.with(title.into_iter().flat_map(|title| ["--title", title])).output().is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_are_no_pictures() {
        assert_eq!(picture("burst  --scenario burst"), Some(("burst", "--scenario burst")));
        assert_eq!(picture("# burst --scenario burst"), None);
        assert_eq!(picture(""), None);
    }
}
