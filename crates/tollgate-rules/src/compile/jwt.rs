//! `identify.user.jwt`: what to look for in signed tokens, and the file with the keys.

use crate::Problem;
use crate::identify::UserFrom;
use crate::yaml::{Entry, Node};

use super::context::Context;

/// This build has no cryptography, and says so.
#[cfg(not(feature = "jwt"))]
pub(super) fn read(context: Context<'_>, entry: &Entry, _: Option<&Node>) -> Option<UserFrom> {
    let problem = Problem::new("this build of Tollgate cannot verify signed tokens")
        .hint("build tollgate-rules with its feature `jwt`, as the server is");
    context.error(entry.key_span, problem);
    None
}

#[cfg(feature = "jwt")]
pub(super) use with_keys::read;

#[cfg(feature = "jwt")]
mod with_keys {
    use std::fs::{self, File};
    use std::io::{self, Read};
    use std::path::Path;
    use std::sync::Arc;

    use super::*;
    use crate::identify::jwt::{Jwt, JwtSettings};
    use crate::matcher::parse_header_name;

    /// The largest keys file: 16 keys with their certificates are less than half of it.
    const KEYS_BYTES_MAX: u64 = 256 << 10;

    /// Reads settings and keys. The tier may be a claim of the same token.
    pub(in super::super) fn read(
        context: Context<'_>,
        entry: &Entry,
        tier: Option<&Node>,
    ) -> Option<UserFrom> {
        let node = &entry.node;
        let header = match node.get("header") {
            Some(header) => context.read(header, parse_header_name)?,
            None => "authorization".into(),
        };
        let file = node.get("keys_file")?;
        let text = |node: &Node| node.text().map(Box::from);
        let texts = |name: &str| -> Vec<Box<str>> {
            let each = node.get(name).map(Node::each).unwrap_or_default();
            each.iter().filter_map(text).collect()
        };
        let settings = JwtSettings {
            claim: text(node.get("claim")?)?,
            tier_claim: tier.and_then(|tier| text(tier.get("claim")?)),
            header,
            algorithms: texts("algorithms"),
            issuers: texts("issuer"),
            audiences: texts("audience"),
            requires_exp: node.get("require_exp").and_then(Node::boolean).unwrap_or(true),
            keys_file: context.source.folder().join(file.text()?),
        };
        let keys = read_keys(&settings.keys_file);
        match keys.and_then(|keys| Jwt::new(settings, &keys)) {
            Ok(jwt) => Some(UserFrom::Jwt(Arc::new(jwt))),
            Err(problem) => {
                context.error(file.span, problem);
                None
            }
        }
    }

    /// The bytes of a keys file. What is said about it never shows them.
    fn read_keys(path: &Path) -> Result<Vec<u8>, Problem> {
        let metadata = fs::metadata(path).map_err(|error| cannot_read(&error))?;
        // Opening a pipe would wait for its writer.
        if !metadata.is_file() {
            return Err(Problem::new("the keys file is not a regular file")
                .hint("name a file with a JSON Web Key Set or public keys in PEM"));
        }
        let file = File::open(path).map_err(|error| cannot_read(&error))?;
        let mut bytes = Vec::new();
        let read = file.take(KEYS_BYTES_MAX + 1).read_to_end(&mut bytes);
        read.map_err(|error| cannot_read(&error))?;
        if bytes.len() as u64 > KEYS_BYTES_MAX {
            let most = KEYS_BYTES_MAX >> 10;
            return Err(Problem::new(format!("the keys file is larger than {most} KiB"))
                .hint("name a file with a JSON Web Key Set or public keys in PEM"));
        }
        Ok(bytes)
    }

    fn cannot_read(error: &io::Error) -> Problem {
        match error.kind() {
            io::ErrorKind::NotFound => Problem::new("there is no such keys file")
                .hint("its name is relative to the directory of the rules file"),
            io::ErrorKind::PermissionDenied => {
                Problem::new("the keys file cannot be read: permission denied")
                    .hint("let the user that runs Tollgate read it")
            }
            _ => Problem::new(format!("the keys file cannot be read: {error}"))
                .hint("name a file with a JSON Web Key Set or public keys in PEM"),
        }
    }
}
