//! What a store can be told beside where it is.

use std::time::Duration;

/// What a store can be told beside where it is.
#[derive(Clone, Debug)]
pub struct Options {
    /// How long a decision may take, from the question to the answer, waiting in line included.
    pub timeout: Duration,
    /// What all keys begin with.
    pub prefix: String,
    /// Keys are hashed under this secret, if there is one: then nobody who reads the store can try
    /// names until one fits.
    pub key_secret: Option<Vec<u8>>,
    /// Whose clock decides.
    pub time: TimeOf,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            timeout: Duration::from_millis(10),
            prefix: "tollgate".into(),
            key_secret: None,
            time: TimeOf::Server,
        }
    }
}

/// Whose clock decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TimeOf {
    /// The store's own: it does not matter how instances' clocks differ.
    #[default]
    Server,
    /// The asker's, for simulations and tests. What is written then expires within the hour.
    Caller,
}
