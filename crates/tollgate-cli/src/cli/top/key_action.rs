//! Acts on one caller: the question that is asked back, and the request to the server.

use http::Method;
use serde_json::{Value, json};

use crate::cli::client::{ClientRequest, path_segment};
use crate::cli::human_output::printable;
use crate::settings::parse_duration;

/// Default length of a block.
const BLOCK_DEFAULT: &str = "15m";

/// Default grant, in units.
const GRANT_DEFAULT: &str = "10";

/// An act on a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyAction {
    Reset,
    Block,
    Unblock,
    Grant,
}

/// A caller under a rule, as the server names them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NamedCaller {
    pub(super) rule: String,
    pub(super) key: String,
}

impl NamedCaller {
    /// The name for people, safe for a terminal.
    pub(super) fn name(&self) -> String {
        format!("{} under {}", printable(&self.key), printable(&self.rule))
    }
}

impl KeyAction {
    /// The act of a key on the keyboard.
    pub(super) fn of_key(key: char) -> Option<KeyAction> {
        match key {
            'r' => Some(KeyAction::Reset),
            'b' => Some(KeyAction::Block),
            'u' => Some(KeyAction::Unblock),
            'g' => Some(KeyAction::Grant),
            _ => None,
        }
    }

    /// The value that the question offers; `None` if the act needs none.
    pub(super) fn default_value(self) -> Option<&'static str> {
        match self {
            KeyAction::Block => Some(BLOCK_DEFAULT),
            KeyAction::Grant => Some(GRANT_DEFAULT),
            KeyAction::Reset | KeyAction::Unblock => None,
        }
    }

    /// The question before the act.
    pub(super) fn question(self, caller: &NamedCaller) -> String {
        let name = caller.name();
        match self {
            KeyAction::Reset => format!("Reset {name}? It is forgotten what was used. y/n"),
            KeyAction::Unblock => format!("Unblock {name}? y/n"),
            KeyAction::Block => format!("Block {name}; Enter does it, Esc does not. For: "),
            KeyAction::Grant => format!("Grant {name}; Enter does it, Esc does not. Units: "),
        }
    }

    /// The request; an error if the value is not what the act needs.
    pub(super) fn request(
        self,
        caller: &NamedCaller,
        value: &str,
    ) -> Result<ClientRequest, String> {
        let (method, body) = match self {
            KeyAction::Reset => (Method::DELETE, None),
            KeyAction::Unblock => (Method::POST, Some(json!({ "block": null }))),
            KeyAction::Block => {
                parse_duration(value)?;
                (Method::POST, Some(json!({ "block": value })))
            }
            KeyAction::Grant => {
                let units = value.parse::<u64>().ok().filter(|units| *units > 0);
                let units = units.ok_or("write a number of units, at least 1")?;
                (Method::POST, Some(json!({ "grant": units })))
            }
        };
        let (rule, key) = (path_segment(&caller.rule), path_segment(&caller.key));
        let path = format!("/api/keys/{rule}/{key}");
        Ok(ClientRequest { method, path, body: body.map(|body: Value| body.to_string()) })
    }

    /// The sentence after the act.
    pub(super) fn done(self, caller: &NamedCaller, value: &str) -> String {
        let name = caller.name();
        match self {
            KeyAction::Reset => format!("Reset {name}."),
            KeyAction::Unblock => format!("Unblocked {name}."),
            KeyAction::Block => format!("Blocked {name} for {}.", printable(value)),
            KeyAction::Grant => format!("Granted {} units to {name}.", printable(value)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acts_become_requests() {
        let caller = NamedCaller { rule: "a/b".into(), key: "user=\u{1b}[2J".into() };
        let rows = [
            (KeyAction::Reset, "", Ok(("DELETE", None))),
            (KeyAction::Unblock, "", Ok(("POST", Some(r#"{"block":null}"#)))),
            (KeyAction::Block, "15m", Ok(("POST", Some(r#"{"block":"15m"}"#)))),
            (KeyAction::Block, "soon", Err("write a number and a unit")),
            (KeyAction::Grant, "7", Ok(("POST", Some(r#"{"grant":7}"#)))),
            (KeyAction::Grant, "0", Err("write a number of units")),
            (KeyAction::Grant, "-1", Err("write a number of units")),
        ];
        for (action, value, want) in rows {
            match (action.request(&caller, value), want) {
                (Ok(request), Ok((method, body))) => {
                    assert_eq!(request.path, "/api/keys/a%2Fb/user=%1B%5B2J");
                    assert_eq!((request.method.as_str(), request.body.as_deref()), (method, body));
                }
                (Err(found), Err(want)) => assert!(found.starts_with(want), "{found}"),
                (found, want) => panic!("{action:?}: {found:?} instead of {want:?}"),
            }
            let texts = [action.question(&caller), action.done(&caller, "\u{7}")];
            assert!(texts.iter().all(|text| !text.contains(char::is_control)), "{texts:?}");
        }
    }
}
