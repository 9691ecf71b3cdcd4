//! A configuration from `examples/`, unchanged but for the ports of a test, so that tests cover the files that
//! people copy.

use std::fmt::Display;
use std::fs;
use std::path::Path;

/// The files of one example. Bound: those that the test names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExampleFiles {
    files: Vec<(String, String)>,
}

impl ExampleFiles {
    /// Reads `examples/FOLDER/NAME` for each name; the first is the one a proxy is started with.
    ///
    /// # Panics
    ///
    /// If there is no such file.
    #[must_use]
    pub fn read(folder: &str, names: &[&str]) -> ExampleFiles {
        let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples").join(folder);
        let read = |name: &&str| {
            let path = examples.join(name);
            let text = fs::read_to_string(&path);
            let text = text.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            ((*name).to_owned(), text)
        };
        ExampleFiles { files: names.iter().map(read).collect() }
    }

    /// Replaces `from` with `to` everywhere; port 3000 is not found in 30001.
    ///
    /// # Panics
    ///
    /// If none of the files contains it: the example is no longer what the test expects.
    #[must_use]
    pub fn replace(mut self, from: &str, to: impl Display) -> ExampleFiles {
        let before = self.clone();
        for (_, text) in &mut self.files {
            *text = replaced(text, from, &to.to_string());
        }
        assert_ne!(self, before, "the example has no {from:?}");
        self
    }

    /// The text of the first file.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.files[0].1
    }

    /// Writes the files into a folder and returns the name of the first.
    pub(super) fn write(&self, folder: &Path) -> &str {
        for (name, text) in &self.files {
            let path = folder.join(name);
            fs::write(&path, text)
                .unwrap_or_else(|error| panic!("cannot write {}: {error}", path.display()));
        }
        &self.files[0].0
    }
}

fn replaced(text: &str, from: &str, to: &str) -> String {
    let mut parts = text.split(from);
    let mut done = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let goes_on = from.ends_with(DIGITS) && part.starts_with(DIGITS);
        done.push_str(if goes_on { from } else { to });
        done.push_str(part);
    }
    done
}

const DIGITS: fn(char) -> bool = |c| c.is_ascii_digit();

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_put_everywhere_and_only_where_they_are() {
        let example =
            ExampleFiles::read("routing", &["nginx.conf"]).replace("127.0.0.1:8081", "here:1");
        assert!(example.text().contains("server here:1 "));
        assert!(!example.text().contains("127.0.0.1:8081"));
        assert_eq!(replaced("a:30001 a:3000;b:3000", "a:3000", "c"), "a:30001 c;b:3000");
    }

    #[test]
    #[should_panic(expected = "has no \"127.0.0.1:9999\"")]
    fn a_port_that_is_not_there_is_noticed() {
        let _ = ExampleFiles::read("routing", &["nginx.conf"]).replace("127.0.0.1:9999", "here:1");
    }
}
