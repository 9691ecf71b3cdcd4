//! The command lines of the measuring programs: a few options each, read by hand.

use std::fmt::Display;
use std::process::ExitCode;
use std::str::FromStr;

/// The words of a command line that were not read yet.
#[derive(Debug)]
pub struct BenchOptions {
    words: Vec<String>,
}

/// The message about a command line that was not understood.
pub type UsageError = String;

impl BenchOptions {
    /// Removes a flag. Returns true if it was given.
    pub fn flag(&mut self, name: &str) -> bool {
        let given = self.words.iter().position(|word| word == name);
        given.map(|index| self.words.remove(index)).is_some()
    }

    /// Removes an option and returns its value, if it was given.
    pub fn value<T: FromStr<Err: Display>>(&mut self, name: &str) -> Result<Option<T>, UsageError> {
        let Some(index) = self.words.iter().position(|word| word == name) else { return Ok(None) };
        self.words.remove(index);
        if index == self.words.len() {
            return Err(format!("{name} needs a value"));
        }
        let mut word = self.words.remove(index);
        if word.starts_with(|first: char| first.is_ascii_digit()) {
            word.retain(|character| character != '_');
        }
        word.parse().map(Some).map_err(|error| format!("{name} {word:?}: {error}"))
    }

    /// Returns an error if any word is left.
    pub fn finish(self) -> Result<(), UsageError> {
        match self.words.first() {
            None => Ok(()),
            Some(word) => Err(format!("there is no option `{word}`")),
        }
    }
}

/// Runs a program. `--help` prints `help`. The exit code is 2 for a command line that was not understood, and 1
/// for a run that found a broken promise.
pub fn run(help: &str, program: impl FnOnce(BenchOptions) -> Result<bool, UsageError>) -> ExitCode {
    let mut options = BenchOptions { words: std::env::args().skip(1).collect() };
    if options.flag("--help") || options.flag("-h") {
        print!("{help}");
        return ExitCode::SUCCESS;
    }
    match program(options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(problem) => {
            eprintln!("{problem}; --help lists the options");
            ExitCode::from(2)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(line: &str) -> BenchOptions {
        BenchOptions { words: line.split_whitespace().map(str::to_owned).collect() }
    }

    #[test]
    fn words_are_taken_once_and_strangers_are_named() {
        let mut given = options("--quick --keys 1_000 --slow");
        assert!(given.flag("--quick") && !given.flag("--quick"));
        assert_eq!(given.value("--keys"), Ok(Some(1_000_u64)));
        assert_eq!(given.value::<u64>("--keys"), Ok(None));
        assert_eq!(options("--only a_b").value("--only"), Ok(Some("a_b".to_owned())));
        assert_eq!(given.finish(), Err("there is no option `--slow`".into()));
        assert_eq!(options("--keys").value::<u64>("--keys"), Err("--keys needs a value".into()));
        assert!(options("--keys many").value::<u64>("--keys").is_err());
    }
}
